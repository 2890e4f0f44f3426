"""Writes adamw8bit_oracles.inc: AdamW with state of 8 bits by the definitions of Dettmers et al., 2022 (arXiv:2110.02861).

    python adamw8bit_oracles.py

Values are looked up in a table, the nearest one by its neighbours' midpoints; nothing is shared with Levin's arithmetic.
All of it is in float32, with operations that are rounded once. The tests repeat the problem, whose gradients are exact.
A number within rounding of a midpoint may have either neighbour, which one in a thousand elements shows after 50 steps:
those that are written are not among them.
"""

import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent
BLOCK = 256
SIZES = [(4232,), (64, 80), (12,)]
STEPS = 50
EVERY = 37  # of the elements that are written
f32 = np.float32


def dynamic_values(signed):
    """Section 1.3 of the paper: decades, each with twice the values of the one below, which lie in the middle of equal parts."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1.0, 2 ** (decade + (not signed)) + 1)
        middles = 10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2
        values += [*middles, *(-middles if signed else [])]
    assert len(values) == 256
    return np.sort(np.array(values)).astype(f32)


def rounded(values, table):
    """What a block of numbers is after it was quantized. The scale has the sign of the greatest magnitude."""
    scale = max(values, key=lambda v: (abs(v), v < 0))
    if scale == 0:
        return values
    relative = values * (f32(1) / scale)
    middles = (table[:-1].astype(np.float64) + table[1:]) / 2
    return table[np.searchsorted(middles, relative, side="right")] * scale


def by_block(values, table):
    return np.concatenate([rounded(values[i : i + BLOCK], table) for i in range(0, values.size, BLOCK)])


def start(k, i):
    return (((i * 613 + k * 101) % 2039) - 1019).astype(f32) / f32(1024)


def gradient(k, i, step, param):
    noise = (((i * 7919 + step * 104729 + k * 31) % 4093) - 2046).astype(f32) / f32(2048)
    return noise * np.ldexp(f32(1), -(i % 12)).astype(f32) + param * f32(0.5)


def trained(lr, betas, eps, weight_decay, min_8bit_size=4096, maximize=False):
    signed, positive = dynamic_values(True), dynamic_values(False)
    written = []
    for k, size in enumerate(SIZES):
        i = np.arange(np.prod(size), dtype=np.int64)
        param, mean, square = start(k, i), np.zeros(i.size, f32), np.zeros(i.size, f32)
        for step in range(STEPS):
            grad = gradient(k, i, step, param) * f32(-1 if maximize else 1)
            mean = mean * f32(betas[0]) + grad * f32(1 - betas[0])
            square = square * f32(betas[1]) + grad * grad * f32(1 - betas[1])
            rate = f32(lr / (1 - betas[0] ** (step + 1)))
            root = f32(1 / (1 - betas[1] ** (step + 1)) ** 0.5)
            param = param * f32(1 - lr * weight_decay) - mean * rate / (np.sqrt(square) * root + f32(eps))
            if i.size >= min_8bit_size:
                mean, square = by_block(mean, signed), by_block(square, positive)
        written += param[::EVERY].tolist()
    return written


CASES = {
    "adamw8bit": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
    "adamw8bit_all": {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.3, "maximize": True},
    "adamw8bit_every_size": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "min_8bit_size": 1},
    "adamw8bit_no_size": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "min_8bit_size": 9999},
}

if __name__ == "__main__":
    lines = [f"// Written by adamw8bit_oracles.py with NumPy {np.__version__}; do not edit."]
    for name, case in CASES.items():
        values = trained(**case)
        lines.append(f'{{"{name}", {{')
        lines += ["  " + " ".join(f"{v!r}," for v in values[at : at + 6]) for at in range(0, len(values), 6)]
        lines.append("}},")
    (FOLDER / "adamw8bit_oracles.inc").write_text("\n".join(lines) + "\n")
