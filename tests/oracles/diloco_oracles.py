"""Writes diloco_oracles.inc: DiLoCo and local SGD in plain PyTorch, two replicas one after the other in one process.

    python diloco_oracles.py

tests/strategies/local_steps_test.cpp trains the same problem: data and weights are closed formulas.
"""

import copy
import pathlib

import torch

FOLDER = pathlib.Path(__file__).parent
RANKS, BATCH, BATCHES, EPOCHS, EVERY = 2, 4, 5, 2, 3


def data():
    x = (torch.arange(RANKS * BATCH * BATCHES * 4, dtype=torch.float64).reshape(-1, 4) * 0.7).sin()
    return x, x.sum(1, keepdim=True)


def model():
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            start = (places * 0.9 + number).cos().mul(0.5).reshape(parameter.shape)
            parameter.copy_(start.float())  # the test builds the model in float32
    return made


def flat(made):
    return torch.cat([parameter.detach().reshape(-1) for parameter in made.parameters()])


def train(outer_settings):
    """Weights after all steps: the mean of the replicas inside of a window."""
    x, y = data()
    agreed = model()
    replicas = [copy.deepcopy(agreed) for _ in range(RANKS)]
    inner = [torch.optim.AdamW(replica.parameters(), lr=0.05, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1,
                               foreach=False) for replica in replicas]
    outer = None if outer_settings is None else torch.optim.SGD(agreed.parameters(), foreach=False, **outer_settings)
    for step in range(EPOCHS * BATCHES):
        first = step % BATCHES * RANKS * BATCH
        for rank, (replica, optimizer) in enumerate(zip(replicas, inner)):
            own = slice(first + rank * BATCH, first + (rank + 1) * BATCH)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(replica(x[own]), y[own]).backward()
            optimizer.step()
        if (step + 1) % EVERY:
            continue
        with torch.no_grad():
            for of_ranks in zip(agreed.parameters(), *(replica.parameters() for replica in replicas)):
                mean = sum(of_ranks[1:]) / RANKS
                if outer is None:
                    of_ranks[0].copy_(mean)
                else:
                    of_ranks[0].grad = of_ranks[0] - mean
        if outer is not None:
            outer.step()
        with torch.no_grad():
            for replica in replicas:
                for parameter, value in zip(replica.parameters(), agreed.parameters()):
                    parameter.copy_(value)
    return sum(flat(replica) for replica in replicas) / RANKS


def main():
    lines = [f"// Written by diloco_oracles.py with PyTorch {torch.__version__.split('+')[0]}; do not edit."]
    for name, settings in {
        "kLocalSgd": None,
        "kDiloco": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
        "kDilocoPlainMomentum": {"lr": 0.5, "momentum": 0.8, "nesterov": False},
    }.items():
        values = ", ".join(f"{value:.17g}" for value in train(settings).tolist())
        lines.append(f"const std::vector<double> {name} = {{{values}}};")
    (FOLDER / "diloco_oracles.inc").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
