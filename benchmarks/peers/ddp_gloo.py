"""Milliseconds a training step takes with PyTorch's DistributedDataParallel over Gloo: the peer of strategy_benchmark.

    python benchmarks/peers/ddp_gloo.py [ranks] [small|large] [steps]
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 50


def model(large):
    if large:
        sizes = (784, 3072, 2432, 10)
    else:
        sizes = (784, 128, 10)
    layers = []
    for i, (width, out) in enumerate(zip(sizes, sizes[1:])):
        layers.append(torch.nn.Linear(width, out))
        if i + 2 < len(sizes):
            layers.append(torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


def worker(rank, ranks, large, steps, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    net = DistributedDataParallel(model(large), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
    images = torch.randn(32, 784)
    labels = torch.randint(0, 10, (32,))
    for step in range(steps):
        if step == WARM_UP:
            started = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    if rank == 0:
        print(f"DistributedDataParallel {ranks} ranks  {1000 * (time.perf_counter() - started) / (steps - WARM_UP):8.3f} ms a step")
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    large = len(sys.argv) > 2 and sys.argv[2] == "large"
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else (150 if large else 1000)
    mp.spawn(worker, args=(ranks, large, steps, free_port()), nprocs=ranks)
