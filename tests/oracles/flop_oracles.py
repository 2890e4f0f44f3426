"""Writes flop_oracles.inc: what PyTorch's FlopCounterMode counts in forward and backward, for tests/nn/flop_counter_test.

    python flop_oracles.py
"""

import pathlib

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

# PyTorch leaves attention on the CPU out; the formulas are those it has for GPUs.
FLASH_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(
        grad, q, k, v
    ),
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (part.reshape(2, 7, 4, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(2, 7, 16))


class Checkpointed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.first, self.inner = nn.Linear(6, 6), inner

    def forward(self, x):
        return checkpoint(self.inner, self.first(x), use_reentrant=False)


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Conv2d(4, 2, (3, 1), dilation=(2, 1)),
    )


def conv1d():
    return nn.Sequential(nn.Conv1d(3, 5, 4, padding=2), nn.Conv1d(5, 2, 1))


def count(model, shape, autocast=False):
    with FlopCounterMode(display=False, custom_mapping=FLASH_ON_CPU) as counter:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(torch.randn(shape)).float().sum()
        loss.backward()
    return counter.get_total_flops()


cases = {
    "mlp": count(mlp(), (10, 6)),
    "mlp_of_sequences": count(mlp(), (4, 5, 6)),
    "mlp_autocast": count(mlp(), (10, 6), autocast=True),
    "mlp_checkpointed": count(Checkpointed(mlp()), (10, 6)),
    "conv": count(conv(), (5, 3, 17, 13)),
    "conv1d": count(conv1d(), (5, 3, 11)),
    "attention_flash": count(Attention(), (2, 7, 16)),
}
with sdpa_kernel(SDPBackend.MATH):
    cases["attention_math"] = count(Attention(), (2, 7, 16))
    cases["attention_autocast"] = count(Attention(), (2, 7, 16), autocast=True)
lines = ["// Written by flop_oracles.py with PyTorch " + torch.__version__.split("+")[0] + "."]
lines += [f'{{"{name}", {flops}}},' for name, flops in cases.items()]
pathlib.Path(__file__).with_name("flop_oracles.inc").write_text("\n".join(lines) + "\n")
