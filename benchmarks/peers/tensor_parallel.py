"""Milliseconds of processor time a training step of tensor_benchmark's GPT takes in PyTorch: on one rank, and with
parallelize_module and loss_parallel on Gloo CPU ranks of one thread each, in turn.

    python benchmarks/peers/tensor_parallel.py [rounds] [steps] [ranks,...]
"""

import contextlib
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional as F

VOCABULARY, LENGTH, WIDTH, BLOCKS, HEADS, BATCH, WARM_UP = 512, 128, 256, 4, 4, 4, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, WIDTH // HEADS)).permute(2, 0, 3, 1, 4).unbind()
        y = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return y + self.down(F.gelu(self.up(self.norm2(y)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def divide(model, ranks):
    plan = {"tokens": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    for i in range(BLOCKS):
        plan |= {f"blocks.{i}.qkv": ColwiseParallel(), f"blocks.{i}.out": RowwiseParallel(),
                 f"blocks.{i}.up": ColwiseParallel(), f"blocks.{i}.down": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)


def worker(rank, ranks, steps, port, milliseconds):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = Gpt()
    if ranks > 1:
        divide(model, ranks)
    # A fused AdamW does not take plain tensors beside distributed ones.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=ranks == 1)
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, LENGTH)).unbind()
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began = time.process_time()
        optimizer.zero_grad()
        with loss_parallel() if ranks > 1 else contextlib.nullcontext():
            F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    if rank == 0:
        milliseconds.value = 1000 * (time.process_time() - began) / steps
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processor_time(ranks, steps):
    """Of rank 0, in processes of its own."""
    milliseconds = mp.get_context("spawn").Value("d", 0.0)
    mp.spawn(worker, args=(ranks, steps, free_port(), milliseconds), nprocs=ranks)
    return milliseconds.value


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    variants = [int(text) for text in sys.argv[3].split(",")] if len(sys.argv) > 3 else [1, 2, 4]
    times = {ranks: [] for ranks in variants}
    for _ in range(rounds):
        for ranks in variants:
            times[ranks].append(processor_time(ranks, steps))
    for ranks in variants:
        print(f"{ranks} ranks {statistics.median(times[ranks]):8.1f} ms of processor time a step")
