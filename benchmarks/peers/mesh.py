"""Seconds of processor time of rank 0 a training step of the chain of mesh_benchmark takes in PyTorch on four Gloo CPU
ranks of one thread each: fully_shard on a mesh of two by two, or Schedule1F1B over stages whose blocks are sharded.

    python benchmarks/peers/mesh.py replicate_shard|pipeline_shard [steps]
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fsdp2 import BATCH, LENGTH, VOCABULARY, free_port
from pipelining import MICRO_BATCHES, chain, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

RANKS, STAGES, WARM_UP = 4, 2, 5


def shard(elements, mesh):
    model = torch.nn.Sequential(*elements)
    for element in model:
        fully_shard(element, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def replicated_shards():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = shard(chain(), mesh)
    return model, lambda inputs, targets: loss_of(model(inputs), targets).backward()


def sharded_stages():
    mesh = init_device_mesh("cpu", (STAGES, RANKS // STAGES), mesh_dim_names=("pipeline", "shard"))
    stage = mesh.get_local_rank("pipeline")
    elements = chain()
    here = len(elements) // STAGES
    model = shard(elements[stage * here : (stage + 1) * here], mesh["shard"])
    place = PipelineStage(model, stage, STAGES, torch.device("cpu"), group=mesh.get_group("pipeline"))
    schedule = Schedule1F1B(place, MICRO_BATCHES, loss_fn=loss_of)
    if stage == 0:
        return model, lambda inputs, targets: schedule.step(inputs)
    return model, lambda inputs, targets: schedule.step(target=targets, losses=[])


def worker(rank, variant, steps, port, seconds):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model, forward_backward = replicated_shards() if variant == "replicate_shard" else sharded_stages()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(rank if variant == "replicate_shard" else rank % (RANKS // STAGES))
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began = time.process_time()
        optimizer.zero_grad()
        forward_backward(inputs, targets)
        optimizer.step()
    if rank == 0:
        seconds.value = (time.process_time() - began) / steps
    dist.destroy_process_group()


if __name__ == "__main__":
    of_rank_0 = mp.get_context("spawn").Value("d", 0.0)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    mp.spawn(worker, args=(sys.argv[1], count, free_port(), of_rank_0), nprocs=RANKS)
    print(of_rank_0.value)
