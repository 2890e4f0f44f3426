"""Milliseconds a training step of the transformer of sharded_benchmark takes in PyTorch: alone, with Python's
DistributedDataParallel and with FSDP2 (fully_shard on each block), on Gloo CPU ranks of one thread each, in turn.

    python benchmarks/peers/fsdp2.py [rounds] [steps] [ranks]
"""

import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

# As in benchmarks/transformer.h and sharded_benchmark.cpp.
BLOCKS, WIDTH, HEADS, BATCH, LENGTH, VOCABULARY = 4, 256, 4, 8, 128, 128
WARM_UP = 3
VARIANTS = ("single", "ddp", "fsdp2")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = torch.nn.LayerNorm(WIDTH)
        self.projections = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.output = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.widen = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = torch.nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x):
        parts = self.projections(x).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, x):
        y = x + self.attention(self.attention_norm(x))
        return y + self.narrow(F.gelu(self.widen(self.norm(y))))


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def build(variant, ranks):
    torch.manual_seed(1)
    model = Transformer()
    if variant == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if variant == "fsdp2":
        mesh = init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def worker(rank, variant, ranks, steps, port, milliseconds):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = build(variant, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(rank)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
    times = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs).view(-1, VOCABULARY), targets).backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    if rank == 0:
        milliseconds.value = 1000 * statistics.median(times[WARM_UP:])
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def median_step(variant, ranks, steps):
    """Of rank 0, in processes of its own."""
    milliseconds = mp.get_context("spawn").Value("d", 0.0)
    used = 1 if variant == "single" else ranks
    mp.spawn(worker, args=(variant, used, steps, free_port(), milliseconds), nprocs=used)
    return milliseconds.value


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    times = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            times[variant].append(median_step(variant, ranks, steps))
    for variant in VARIANTS:
        ratio = statistics.median(own / ddp for own, ddp in zip(times[variant], times["ddp"]))
        print(f"{variant:8} {statistics.median(times[variant]):8.1f} ms a step   {ratio:.3f} of ddp")
