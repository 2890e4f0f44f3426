"""Replays the servers' logs of mode async with PyTorch: which worker's gradient, of which values, came when.

replay.py RUN.json, where RUN.json has what the test wrote of the run. Prints the largest difference between the weights
(and the momentum, where the run has it) of the run and of the replay.
"""

import csv
import json
import sys

import torch


def main():
    torch.set_default_dtype(torch.float64)
    with open(sys.argv[1], encoding="utf-8") as file:
        run = json.load(file)
    tensor = lambda saved: torch.tensor(saved["values"]).reshape(saved["shape"])
    start = {name: tensor(saved) for name, saved in run["start"].items()}
    logs = []
    for path in run["logs"]:
        with open(path, encoding="utf-8") as file:
            logs.append(list(csv.DictReader(file)))
    x, y = tensor(run["x"]), tensor(run["y"])

    def gradients(weights, batch):
        weights = {name: value.clone().requires_grad_() for name, value in weights.items()}
        rows = slice(batch * run["batch_size"], (batch + 1) * run["batch_size"])
        hidden = (x[rows] @ weights["first.weight"].T + weights["first.bias"]).relu()
        out = hidden @ weights["second.weight"].T + weights["second.bias"]
        torch.nn.functional.mse_loss(out, y[rows]).backward()
        return {name: value.grad for name, value in weights.items()}

    servers = range(len(logs))
    # The values of each server after 0, 1, 2, ... updates.
    history = [[{name: start[name] for name in start if run["server_of"][name] == server}] for server in servers]
    key_of = lambda row: (int(row["worker"]), int(row["epoch"]), int(row["batch"]))
    seen = {}
    for server in servers:
        for row in logs[server]:
            seen.setdefault(key_of(row), {})[server] = int(row["values_of_update"])
    computed = {}
    momentum = {}
    left = [list(log) for log in logs]
    while any(left):
        progress = False
        for server in servers:
            if not left[server]:
                continue
            key = key_of(left[server][0])
            if key not in computed:
                if any(len(history[other]) <= seen[key][other] for other in servers):
                    continue
                weights = {}
                for other in servers:
                    weights.update(history[other][seen[key][other]])
                computed[key] = gradients(weights, key[2])
            row = left[server].pop(0)
            rate = float(row["learning_rates"])
            now, then = history[server][-1], history[server][seen[key][server]]
            new = {}
            for name, value in now.items():
                gradient = computed[key][name]
                gradient = gradient + run["delay_compensation"] * gradient * gradient * (value - then[name])
                momentum[name] = gradient if name not in momentum else run["momentum"] * momentum[name] + gradient
                new[name] = value - rate * momentum[name]
            history[server].append(new)
            progress = True
        assert progress, "the logs contradict each other"

    largest = 0.0
    for server in servers:
        for name, value in history[server][-1].items():
            largest = max(largest, (value - tensor(run["end"][name])).abs().max().item())
            if "end_momentum" in run:
                largest = max(largest, (momentum[name] - tensor(run["end_momentum"][name])).abs().max().item())
    print(largest)


main()
