"""Writes pruning_masks.inc and pruned_training.inc: what torch.nn.utils.prune prunes, and training with it.

    python pruning_oracles.py

The tests repeat the same problem: weights and data are closed formulas, so nothing else needs to be shared.
"""

import math
import pathlib

import torch
from torch.nn.utils import prune

FOLDER = pathlib.Path(__file__).parent
EPOCHS = 5
BATCHES = 3


def formula(shape, phase):
    count = math.prod(shape)
    values = [math.sin(0.7 * i * (phase + 1) + phase) for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


# ---- Masks: three prunings one after the other.


def layers():
    conv, linear = torch.nn.Conv2d(3, 5, 2), torch.nn.Linear(7, 6)
    for phase, layer in enumerate((conv, linear)):
        layer.double().weight.data.copy_(formula(layer.weight.shape, phase))
    return [(conv, "weight"), (linear, "weight")]


def masks(how, amount, dim=0, norm=2):
    pruned = layers()
    texts = []
    for _ in range(3):
        if how == "global":
            prune.global_unstructured(pruned, prune.L1Unstructured, amount=amount)
        for layer, name in pruned:
            if how == "local":
                prune.l1_unstructured(layer, name, amount)
            if how == "slices":
                prune.ln_structured(layer, name, amount, n=norm, dim=dim)
        texts.append("".join("01"[int(kept == 0)] for layer, _ in pruned for kept in layer.weight_mask.flatten()))
    return texts


MASKS = {
    "global_0.5": masks("global", 0.5),
    "global_0.17": masks("global", 0.17),
    "local_0.5": masks("local", 0.5),
    "local_0.25": masks("local", 0.25),
    "slices_0_2_0.5": masks("slices", 0.5, 0, 2),
    "slices_0_1_0.3": masks("slices", 0.3, 0, 1),
    "slices_1_inf_0.4": masks("slices", 0.4, 1, math.inf),
    "slices_-1_2_0.5": masks("slices", 0.5, -1, 2),
}


# ---- Training: momentum, weight decay and clipping, pruned at the start of epochs from the second on.


def net():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).double()
    for phase, parameter in enumerate(layers.parameters()):
        parameter.data.copy_(0.5 * formula(parameter.shape, phase))
    return layers


def zeros(pruned):
    return sum(int((getattr(layer, "weight_mask", torch.ones(1)) == 0).sum()) for layer, _ in pruned)


def gradual_count(pruned, epoch, amount=0.8, start=1, end=4):
    total = sum(layer.weight.numel() for layer, _ in pruned)
    return round(amount * (1 - (1 - (epoch - start) / (end - start)) ** 3) * total) - zeros(pruned)


def training(step):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    pruned = [(model[0], "weight"), (model[2], "weight")]
    for epoch in range(EPOCHS):
        if epoch >= 1:
            model(formula((8, 4), 0))  # the weights that are ranked are those of the last forward
            step(pruned, epoch)  # parameters get other names, and stay the tensors that the optimizer has
        for batch in range(BATCHES):
            x, y = formula((8, 4), batch), formula((8, 2), batch + 5)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
    for layer, name in pruned:
        prune.remove(layer, name)
    return torch.cat([p.detach().flatten() for p in (model[0].weight, model[0].bias, model[2].weight, model[2].bias)])


def each(method):
    return lambda pruned, _: [method(layer, name) for layer, name in pruned]


TRAINING = {
    "{amount: 0.3}": lambda pruned, _: prune.global_unstructured(pruned, prune.L1Unstructured, amount=0.3),
    "{amount: 0.3, use_global_unstructured: false}": each(lambda layer, name: prune.l1_unstructured(layer, name, 0.3)),
    "{pruning_fn: ln_structured, pruning_dim: 1, pruning_norm: 1, amount: 0.2}": each(
        lambda layer, name: prune.ln_structured(layer, name, 0.2, n=1, dim=1)
    ),
    "{schedule: gradual, amount: 0.8, end_epoch: 4}": lambda pruned, epoch: prune.global_unstructured(
        pruned, prune.L1Unstructured, amount=gradual_count(pruned, epoch)
    ),
}


def write(name, lines):
    note = f"// Written by pruning_oracles.py with PyTorch {torch.__version__.split('+')[0]}; do not edit.\n"
    (FOLDER / name).write_text(note + "\n".join(lines) + "\n")


def main():
    write(
        "pruning_masks.inc",
        [f'{{"{name}", {{{", ".join(chr(34) + text + chr(34) for text in texts)}}}}},' for name, texts in MASKS.items()],
    )
    lines = []
    for options, step in TRAINING.items():
        values = training(step).tolist()
        lines.append(f'{{"{options}", {{')
        lines += ["  " + ", ".join(repr(v + 0.0) for v in values[i : i + 6]) + "," for i in range(0, len(values), 6)]
        lines.append("}},")
    write("pruned_training.inc", lines)


if __name__ == "__main__":
    main()
