"""Writes quantized_weight_oracles.inc: weights in 4 bits (NF4, double quantization) as bitsandbytes has them.

    python quantized_weight_oracles.py        needs torch and bitsandbytes

For each case the formula of the weight is in the test: what is written are the codes, the scales' codes, and sums and
single numbers of the weight that bitsandbytes gives back.
"""

import pathlib

import bitsandbytes
import bitsandbytes.functional as bnb
import torch

FOLDER = pathlib.Path(__file__).parent
SHAPES = [(3, 64), (5, 41), (160, 128)]
EVERY = 701  # of the bytes and numbers that are written of long tensors


def weight(rows, columns):
    """Exact in float32: whole numbers, of many sizes, divided by a power of two."""
    i = torch.arange(rows * columns)
    noise = (i * 7919 + 13) % 4093 - 2046
    return (noise.float() * (1 + i // 64 % 5).float() / 16384).view(rows, columns)


def numbers(tensor):
    flat = tensor.flatten()
    flat = flat if flat.numel() <= 256 else flat[::EVERY]
    return ", ".join(f"{v:.9g}" if flat.is_floating_point() else str(v) for v in flat.tolist())


def main():
    lines = [f"// Written by quantized_weight_oracles.py with bitsandbytes {bitsandbytes.__version__}; do not edit."]
    for rows, columns in SHAPES:
        w = weight(rows, columns)
        codes, state = bnb.quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4")
        back = bnb.dequantize_4bit(codes, state)
        lines.append(f'{{{rows}, {columns}, {{{numbers(codes)}}},\n {{{numbers(state.absmax)}}},\n'
                     f' {{{numbers(back)}}}, {back.double().abs().sum().item():.12g}}},')
    (FOLDER / "quantized_weight_oracles.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
