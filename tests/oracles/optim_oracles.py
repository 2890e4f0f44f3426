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
LONG = 50  # of optimizers whose rounding could add up
warnings.simplefilter("ignore")


def parameters():
    a = torch.tensor([math.sin(0.7 * i + 0.1) for i in range(37)], dtype=torch.float64)
    b = torch.tensor([math.cos(0.3 * i) for i in range(12)], dtype=torch.float64).reshape(3, 4)
    return [a.requires_grad_(), b.requires_grad_()]


def set_gradients(params, step):
    for k, p in enumerate(params):
        i = torch.arange(p.numel(), dtype=torch.float64).reshape(p.shape)
        p.grad = (0.5 * p.detach() + torch.sin((i + 1) * (step + 1) * 0.37 + k)).clone()


def trajectory(cls, settings, second=None, steps=STEPS):
    """All elements of both parameters after some steps; `second` gives the second parameter a group of its own."""
    params = parameters()
    if second is None:
        optimizer = cls(params, foreach=False, **settings)
    else:
        optimizer = cls([{"params": params[:1]}, {"params": params[1:], **second}], foreach=False, **settings)
    for step in range(steps):
        set_gradients(params, step)
        optimizer.step(*([lambda: set_gradients(params, step)] if cls is SAM else []))
    return torch.cat([p.detach().flatten() for p in params]).tolist()


def sparse_gradient(p, step):
    """Of three rows, two of which are one."""
    rows = torch.tensor([step % 6, (2 * step + 1) % 6, step % 6])
    i, j = torch.meshgrid(torch.arange(3.0), torch.arange(4.0), indexing="ij")
    values = torch.sin(0.3 * (i.double() + 1) * (j.double() + 2) * (step + 1))
    return torch.sparse_coo_tensor(rows[None], values, p.shape)


def sparse_trajectory(cls, settings):
    p = torch.tensor([math.cos(0.3 * i) for i in range(24)], dtype=torch.float64).reshape(6, 4).requires_grad_()
    optimizer = cls([p], **settings)
    for step in range(STEPS):
        p.grad = sparse_gradient(p, step)
        optimizer.step()
    return p.detach().flatten().tolist()


class Lion(torch.optim.Optimizer):
    """The algorithm of Chen et al., 2023 (arXiv:2302.06675), which PyTorch does not have."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False, foreach=None):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                grad = -p.grad if group["maximize"] else p.grad
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(torch.sign(first * mean + (1 - first) * grad), alpha=group["lr"])
                mean.mul_(second).add_(grad, alpha=1 - second)


class MuonAndAdamW:
    """torch.optim.Muon for matrices, AdamW for the rest. `exact`: Muon without its rounding to bfloat16."""

    def __init__(self, params, foreach=None, exact=True, orthogonalize=True, betas=(0.9, 0.999), adamw_eps=1e-8, **options):
        matrices = [p for p in params if p.dim() == 2 and orthogonalize]
        others = [p for p in params if p.dim() != 2 or not orthogonalize]
        shared = {"lr": options.get("lr", 1e-3), "weight_decay": options.get("weight_decay", 0.1)}
        self.exact = exact
        self.optimizers = [torch.optim.AdamW(others, foreach=False, betas=betas, eps=adamw_eps, **shared)]
        if matrices:
            self.optimizers.append(torch.optim.Muon(matrices, **options))

    def step(self):
        rounded = torch.Tensor.bfloat16
        if self.exact:
            torch.Tensor.bfloat16 = lambda tensor: tensor.clone()
        try:
            for optimizer in self.optimizers:
                optimizer.step()
        finally:
            torch.Tensor.bfloat16 = rounded


class Lookahead:
    """Algorithm 1 of Zhang et al., 2019 (arXiv:1907.08610)."""

    def __init__(self, params, base, k=5, alpha=0.5, foreach=None, **options):
        self.params, self.k, self.alpha, self.steps = params, k, alpha, 0
        self.slow = [p.detach().clone() for p in params]
        self.base = base(params, foreach=False, **options)

    @torch.no_grad()
    def step(self):
        self.base.step()
        self.steps += 1
        if self.steps % self.k == 0:
            for slow, p in zip(self.slow, self.params):
                slow += self.alpha * (p - slow)
                p.copy_(slow)


class SAM:
    """Algorithm 1 of Foret et al., 2021 (arXiv:2010.01412), and equation 9 of Kwon et al., 2021 (arXiv:2102.11600)."""

    def __init__(self, params, base, rho=0.05, adaptive=False, foreach=None, **options):
        self.params, self.rho, self.adaptive = params, rho, adaptive
        self.base = base(params, foreach=False, **options)

    def step(self, evaluate):
        with torch.no_grad():
            before = [p.clone() for p in self.params]
            sizes = [p.abs() if self.adaptive else torch.ones_like(p) for p in self.params]
            norm = torch.sqrt(sum((size * p.grad).square().sum() for size, p in zip(sizes, self.params)))
            for p, size in zip(self.params, sizes):
                p += self.rho * size.square() * p.grad / norm
        evaluate()
        with torch.no_grad():
            for p, start in zip(self.params, before):
                p.copy_(start)
        self.base.step()


def large_batch_cases():
    """LAMB and LARS as timm has them; timm is in the tests' Python environment."""
    from timm.optim import Lamb, Lars

    lamb = {"max_grad_norm": None}
    return {
        "lamb": (Lamb, lamb),
        "lamb_all": (Lamb, {**lamb, "lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.3}),
        "lamb_groups": (Lamb, {**lamb, "lr": 0.05}, {"lr": 0.02, "weight_decay": 0.0}),
        "lars": (Lars, {"momentum": 0.9}),
        "lars_all": (
            Lars,
            {"lr": 2.0, "momentum": 0.8, "dampening": 0.1, "weight_decay": 0.1, "trust_coeff": 0.02, "nesterov": False},
        ),
        "lars_nesterov": (Lars, {"momentum": 0.9, "weight_decay": 0.02, "nesterov": True, "always_adapt": True}),
    }


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
    "rmsprop": (O.RMSprop, {}),
    "rmsprop_momentum": (O.RMSprop, {"lr": 0.02, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1}),
    "rmsprop_centered": (O.RMSprop, {"lr": 0.02, "eps": 1e-4, "centered": True, "maximize": True}),
    "rmsprop_all": (O.RMSprop, {"lr": 0.02, "momentum": 0.5, "centered": True, "eps": 1e-4}),
    "rmsprop_groups": (O.RMSprop, {"lr": 0.02}, {"lr": 0.01, "momentum": 0.9}),
    "adamax": (O.Adamax, {}),
    "adamax_all": (O.Adamax, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    "adamax_groups": (O.Adamax, {"lr": 0.05}, {"lr": 0.01, "weight_decay": 0.5}),
    "adadelta": (O.Adadelta, {}),
    "adadelta_all": (O.Adadelta, {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    "radam": (O.RAdam, {}),
    "radam_all": (O.RAdam, {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    "radam_decoupled": (O.RAdam, {"lr": 0.05, "weight_decay": 0.3, "decoupled_weight_decay": True}),
    "nadam": (O.NAdam, {}),
    "nadam_all": (O.NAdam, {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, "momentum_decay": 0.1}),
    "nadam_decoupled": (
        O.NAdam, {"lr": 0.05, "weight_decay": 0.3, "decoupled_weight_decay": True, "maximize": True}
    ),
    "rprop": (O.Rprop, {}),
    "rprop_all": (O.Rprop, {"lr": 0.05, "etas": (0.3, 1.7), "step_sizes": (0.01, 0.1), "maximize": True}),
    "lion": (Lion, {}),
    "lion_all": (Lion, {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.3, "maximize": True}),
}


LONG_RUNS = {
    "adafactor": (O.Adafactor, {}),
    "adafactor_all": (
        O.Adafactor,
        {"lr": 0.2, "beta2_decay": -0.6, "eps": (1e-3, 0.05), "d": 1.5, "weight_decay": 0.1, "maximize": True},
    ),
    "adafactor_groups": (O.Adafactor, {"lr": 0.1}, {"lr": 0.02, "weight_decay": 0.5}),
    "muon": (MuonAndAdamW, {}),
    "muon_all": (
        MuonAndAdamW,
        {
            "lr": 0.02, "weight_decay": 0.3, "momentum": 0.8, "nesterov": False, "ns_coefficients": (3.0, -3.2, 1.2),
            "eps": 1e-5, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw", "betas": (0.8, 0.95), "adamw_eps": 1e-4,
        },
    ),
    "muon_off": (MuonAndAdamW, {"lr": 0.02, "orthogonalize": False}),
    "muon_bfloat16": (MuonAndAdamW, {"lr": 0.02, "exact": False}),
    "lookahead_sgd": (Lookahead, {"base": O.SGD, "lr": 0.1, "momentum": 0.9}),
    "lookahead_adamw": (Lookahead, {"base": O.AdamW, "k": 3, "alpha": 0.8, "lr": 0.05}),
    "sam_sgd": (SAM, {"base": O.SGD, "lr": 0.1, "momentum": 0.9}),
    "sam_adaptive": (SAM, {"base": O.AdamW, "rho": 0.5, "adaptive": True, "lr": 0.05}),
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
    "polynomial": (lambda o: S.PolynomialLR(o, 7, 2.0), 10),
    "polynomial_line": (lambda o: S.PolynomialLR(o, 6), 8),
    "constant": (lambda o: S.ConstantLR(o), 8),
    "constant_half": (lambda o: S.ConstantLR(o, 0.5, 3), 6),
    "inverse_square_root": (lambda o: S.LambdaLR(o, lambda n: 1.0 / math.sqrt((n + 4) / 4)), 12),
    "cyclic": (lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=4), 18),
    "cyclic_halving": (
        lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=2, step_size_down=4, mode="triangular2", base_momentum=0.7),
        20,
    ),
    "cyclic_exponential": (
        lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=3, mode="exp_range", gamma=0.9, cycle_momentum=False), 14
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

SPARSE = {
    "sparse_adam": (O.SparseAdam, {}),
    "sparse_adam_all": (O.SparseAdam, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "maximize": True}),
    "sparse_sgd": (O.SGD, {"lr": 0.1, "foreach": False}),
    "sparse_sgd_maximize": (O.SGD, {"lr": 0.1, "maximize": True, "foreach": False}),
    "sparse_adagrad": (O.Adagrad, {"lr": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.3, "foreach": False}),
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
    short = [(name, trajectory(*case)) for name, case in {**OPTIMIZERS, **large_batch_cases()}.items()]
    long = [(name, trajectory(*case, steps=LONG)) for name, case in LONG_RUNS.items()]
    sparse = [(name, sparse_trajectory(*case)) for name, case in SPARSE.items()]
    write(FOLDER / "optimizer_oracles.inc", short + long + sparse)
    write(FOLDER / "scheduler_oracles.inc", [(name, sequence(*case)) for name, case in SCHEDULERS.items()])
