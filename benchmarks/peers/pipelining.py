"""Milliseconds a training step of the chain of pipeline_benchmark takes in PyTorch: on one rank, and cut in two with
torch.distributed.pipelining's ScheduleGPipe and Schedule1F1B, on Gloo CPU ranks of one thread each, in turn.

    python benchmarks/peers/pipelining.py [rounds] [steps]
"""

import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fsdp2 import BATCH, BLOCKS, LENGTH, VOCABULARY, WARM_UP, WIDTH, Block
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

RANKS, MICRO_BATCHES = 2, 4
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
VARIANTS = ("single", *SCHEDULES)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def chain():
    torch.manual_seed(1)
    blocks = (Block() for _ in range(BLOCKS))
    return [torch.nn.Embedding(VOCABULARY, WIDTH), *blocks, torch.nn.Linear(WIDTH, VOCABULARY)]


def worker(rank, variant, steps, port, milliseconds):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks = 1 if variant == "single" else RANKS
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    elements = chain()
    here = len(elements) // ranks
    model = torch.nn.Sequential(*elements[rank * here : (rank + 1) * here])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if variant != "single":
        stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
        schedule = SCHEDULES[variant](stage, MICRO_BATCHES, loss_fn=loss_of)

    def forward_backward():
        if variant == "single":
            loss_of(model(inputs), targets).backward()
        elif rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=[])

    times = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        forward_backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    if rank == 0:
        milliseconds.value = 1000 * statistics.median(times[WARM_UP:])
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def median_step(variant, steps):
    """Of rank 0, in processes of its own."""
    milliseconds = mp.get_context("spawn").Value("d", 0.0)
    ranks = 1 if variant == "single" else RANKS
    mp.spawn(worker, args=(variant, steps, free_port(), milliseconds), nprocs=ranks)
    return milliseconds.value


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    times = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            times[variant].append(median_step(variant, steps))
    for variant in VARIANTS:
        ratio = statistics.median(own / single for own, single in zip(times[variant], times["single"]))
        print(f"{variant:8} {statistics.median(times[variant]):8.1f} ms a step   {ratio:.3f} of single")
