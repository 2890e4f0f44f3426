"""Writes precision_oracles.inc: loss curves of PyTorch in every number format, for tests/precision.

    python precision_oracles.py

Weights and data are closed formulas, which the test repeats.
"""

import math
import pathlib

import torch

torch.set_num_threads(1)
STEPS = 24
BATCH = 16
GROWTH_INTERVAL = 2


def formula(shape, scale, phase):
    count = math.prod(shape)
    values = [scale * math.sin(0.7 * i + phase) for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def model(dtype):
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    with torch.no_grad():
        for phase, parameter in enumerate(net.parameters()):
            parameter.copy_(formula(parameter.shape, 0.4, phase))
    return net.to(dtype)


def curve(precision):
    kind, _, how = precision.partition("-")
    half = {"16": torch.float16, "bf16": torch.bfloat16}.get(kind)
    dtype = {"64": torch.float64, "32": torch.float32}.get(kind, half if how == "true" else torch.float32)
    net = model(dtype)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, fused=True)
    scaler = torch.amp.GradScaler("cpu", growth_interval=GROWTH_INTERVAL, enabled=precision == "16-mixed")
    losses, scales = [], []
    for step in range(STEPS):
        x = formula((BATCH, 6), 1.0, step).to(dtype)
        y = torch.arange(BATCH) % 3
        optimizer.zero_grad()
        with torch.autocast("cpu", half or torch.bfloat16, enabled=how == "mixed"):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


lines = ["// Written by precision_oracles.py with PyTorch " + torch.__version__.split("+")[0] + "."]
for precision in ["64-true", "32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"]:
    losses, scales = curve(precision)
    numbers = ", ".join(f"{loss:.9g}" for loss in losses)
    scaled = ", ".join(f"{scale:.9g}" for scale in scales) if precision == "16-mixed" else ""
    lines.append(f'{{"{precision}", {{{numbers}}}, {{{scaled}}}}},')
pathlib.Path(__file__).with_name("precision_oracles.inc").write_text("\n".join(lines) + "\n")
