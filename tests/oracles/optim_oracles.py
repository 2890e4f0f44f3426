"""Writes optimizer_oracles.inc and scheduler_oracles.inc: what PyTorch computes for the settings of the tests.

    python optim_oracles.py

The tests repeat the same problem: parameters and gradients are closed formulas, so nothing else needs to be shared.
"""

import math
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler as S

FOLDER = pathlib.Path(__file__).parent
STEPS = 7
warnings.simplefilter("ignore")


def parameters():
    a = torch.tensor([math.sin(0.7 * i + 0.1) for i in range(37)], dtype=torch.float64)
    b = torch.tensor([math.cos(0.3 * i) for i in range(12)], dtype=torch.float64).reshape(3, 4)
    return [a.requires_grad_(), b.requires_grad_()]


def set_gradients(params, step):
    for k, p in enumerate(params):
        i = torch.arange(p.numel(), dtype=torch.float64).reshape(p.shape)
        p.grad = (0.5 * p.detach() + torch.sin((i + 1) * (step + 1) * 0.37 + k)).clone()


def trajectory(cls, settings, second=None):
    """All elements of both parameters after STEPS steps; `second` gives the second parameter a group of its own."""
    params = parameters()
    if second is None:
        optimizer = cls(params, foreach=False, **settings)
    else:
        optimizer = cls([{"params": params[:1]}, {"params": params[1:], **second}], foreach=False, **settings)
    for step in range(STEPS):
        set_gradients(params, step)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in params]).tolist()


O = torch.optim
OPTIMIZERS = {
    "sgd": (O.SGD, {"lr": 0.1}),
    "sgd_weight_decay": (O.SGD, {"lr": 0.1, "weight_decay": 0.02}),
    "sgd_momentum": (O.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd_dampening": (O.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}),
    "sgd_nesterov": (O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    "sgd_maximize": (O.SGD, {"lr": 0.1, "momentum": 0.9, "maximize": True}),
    "sgd_groups": (O.SGD, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.03, "momentum": 0.0}),
    "adam": (O.Adam, {}),
    "adam_betas": (O.Adam, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4}),
    "adam_weight_decay": (O.Adam, {"lr": 0.05, "weight_decay": 0.1}),
    "adam_amsgrad": (O.Adam, {"lr": 0.05, "amsgrad": True}),
    "adam_maximize": (O.Adam, {"lr": 0.05, "maximize": True, "weight_decay": 0.1}),
    "adam_groups": (O.Adam, {"lr": 0.05}, {"lr": 0.01, "amsgrad": True}),
    "adamw": (O.AdamW, {}),
    "adamw_weight_decay": (O.AdamW, {"lr": 0.05, "weight_decay": 0.3, "betas": (0.8, 0.95)}),
    "adamw_amsgrad": (O.AdamW, {"lr": 0.05, "amsgrad": True, "weight_decay": 0.3}),
    "adamw_maximize": (O.AdamW, {"lr": 0.05, "maximize": True}),
    "adamw_groups": (O.AdamW, {"lr": 0.05}, {"lr": 0.01, "weight_decay": 0.5}),
    "adagrad": (O.Adagrad, {}),
    "adagrad_all": (
        O.Adagrad,
        {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.02, "initial_accumulator_value": 0.3, "eps": 1e-6},
    ),
    "adagrad_maximize": (O.Adagrad, {"lr": 0.1, "maximize": True}),
    "adagrad_groups": (O.Adagrad, {"lr": 0.1}, {"lr": 0.02, "weight_decay": 0.5}),
}


METRICS = [1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.79, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]


def sequence(make, steps, metrics=None):
    """Learning rates of two groups (and the first group's momentum) before each optimizer step and after the last."""
    params = parameters()
    optimizer = torch.optim.SGD([{"params": params[:1], "lr": 0.1}, {"params": params[1:], "lr": 0.04}], momentum=0.9)
    scheduler = make(optimizer)
    rows = []
    for step in range(steps + 1):
        rows += [g["lr"] for g in optimizer.param_groups] + [optimizer.param_groups[0]["momentum"]]
        optimizer.step()
        if step == steps:
            break
        if metrics is None:
            scheduler.step()
        else:
            scheduler.step(metrics[step % len(metrics)])
    return rows


def warmup(o, n=4):
    return S.LinearLR(o, start_factor=0.2, end_factor=1.0, total_iters=n)


SCHEDULERS = {
    "step": (lambda o: S.StepLR(o, 3, 0.5), 12),
    "multi_step": (lambda o: S.MultiStepLR(o, [2, 5, 5, 9], 0.3), 12),
    "exponential": (lambda o: S.ExponentialLR(o, 0.9), 12),
    "linear_warmup": (lambda o: S.LinearLR(o, 0.1, 0.9, 6), 12),
    "linear_warmup_default": (lambda o: S.LinearLR(o), 8),
    "cosine": (lambda o: S.CosineAnnealingLR(o, 7, 0.001), 24),
    "cosine_one": (lambda o: S.CosineAnnealingLR(o, 1), 5),
    "cosine_warm_restarts": (lambda o: S.CosineAnnealingWarmRestarts(o, 4, 2, 0.002), 30),
    "cosine_warm_restarts_even": (lambda o: S.CosineAnnealingWarmRestarts(o, 5), 16),
    "one_cycle": (lambda o: S.OneCycleLR(o, 0.5, total_steps=20), 20),
    "one_cycle_linear": (
        lambda o: S.OneCycleLR(
            o, 0.5, total_steps=20, pct_start=0.25, anneal_strategy="linear", div_factor=10, final_div_factor=100,
            base_momentum=0.8, max_momentum=0.99
        ),
        20,
    ),
    "one_cycle_three_phase": (
        lambda o: S.OneCycleLR(o, 0.5, total_steps=20, three_phase=True, cycle_momentum=False),
        19,
    ),
    "lambda": (lambda o: S.LambdaLR(o, lambda n: 1.0 / (1 + n)), 8),
    "lambda_groups": (lambda o: S.LambdaLR(o, [lambda n: 0.5**n, lambda n: 1.0 + n]), 6),
    "chained": (lambda o: S.ChainedScheduler([warmup(o), S.ExponentialLR(o, 0.9)]), 10),
    "chained_cosine": (lambda o: S.ChainedScheduler([S.CosineAnnealingLR(o, 6, 0.001), S.StepLR(o, 4, 0.5)]), 14),
    "sequential": (
        lambda o: S.SequentialLR(o, [warmup(o), S.CosineAnnealingLR(o, 8), S.ExponentialLR(o, 0.8)], [4, 12]),
        18,
    ),
    "sequential_decay": (
        lambda o: S.SequentialLR(
            o, [warmup(o), S.StepLR(o, 2, 0.5), S.MultiStepLR(o, [3], 0.1), S.CosineAnnealingWarmRestarts(o, 3)],
            [5, 9, 14],
        ),
        20,
    ),
    "reduce_on_plateau": (lambda o: S.ReduceLROnPlateau(o, patience=2, factor=0.5, cooldown=1), 20, METRICS),
    "reduce_on_plateau_max": (
        lambda o: S.ReduceLROnPlateau(
            o, mode="max", patience=1, factor=0.3, threshold=0.01, threshold_mode="abs", min_lr=0.01
        ),
        20,
        METRICS,
    ),
    "reduce_on_plateau_nan": (
        lambda o: S.ReduceLROnPlateau(o, patience=1), 6, [1.0, math.nan, math.nan, math.nan, 0.5, 0.4]
    ),
}


def write(path, rows):
    lines = [f"// Written by optim_oracles.py with PyTorch {torch.__version__.split('+')[0]}; do not edit."]
    for name, values in rows:
        lines.append(f'{{"{name}", {{')
        for start in range(0, len(values), 6):
            lines.append("  " + " ".join(f"{v!r}," for v in values[start : start + 6]))
        lines.append("}},")
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write(FOLDER / "optimizer_oracles.inc", [(name, trajectory(*case)) for name, case in OPTIMIZERS.items()])
    write(FOLDER / "scheduler_oracles.inc", [(name, sequence(*case)) for name, case in SCHEDULERS.items()])
