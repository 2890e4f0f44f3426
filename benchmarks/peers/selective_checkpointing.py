"""PyTorch's selective activation checkpointing on the transformer of activation_checkpointing_benchmark, on one thread.

    python benchmarks/peers/selective_checkpointing.py [rounds]

Prints, for each choice of kept operators, the peak of memory that a step needs beyond parameters, gradients and
optimizer state, from the profiler's record of allocations, the median time a step, and the ratio to plain steps.
"""

import functools
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

BLOCKS, WIDTH, HEAD, BATCH, LENGTH, WORDS = 12, 256, 64, 8, 128, 128
PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
ATTENTION = [torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
CHOICES = {"plain": None, "checkpointed": [], "keep attention": ATTENTION, "keep products": PRODUCTS,
           "keep both": PRODUCTS + ATTENTION}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.projections, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        parts = self.projections(self.attention_norm(x)).view(*x.shape[:2], 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        y = x + self.dropout(self.output(mixed.transpose(1, 2).reshape(x.shape)))
        return y + self.dropout(self.narrow(F.gelu(self.widen(self.norm(y)))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, tokens, kept):
        x = self.embedding(tokens)
        for block in self.blocks:
            if kept is None:
                x = block(x)
            else:
                policy = lambda _, op, *args, **kwargs: (
                    CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE)
                contexts = functools.partial(create_selective_checkpoint_contexts, policy) if kept else None
                options = {"context_fn": contexts} if contexts else {}
                x = checkpoint(block, x, use_reentrant=False, **options)
        return self.head(x)


def peak_of(step):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    held = peak = 0
    memory = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def step(kept):
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(inputs, kept).flatten(0, 1), targets).backward()
        optimizer.step()

    for kept in CHOICES.values():
        step(kept)
    peaks = {name: peak_of(lambda: step(kept)) for name, kept in CHOICES.items()}
    seconds = {name: [] for name in CHOICES}
    for _ in range(rounds):
        for name, kept in CHOICES.items():
            started = time.process_time()
            step(kept)
            seconds[name].append(time.process_time() - started)
    for name in CHOICES:
        ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds["plain"]))
        print(f"{name:15}  peak activation memory {peaks[name] / 1e6:8.1f} MB  ratio {peaks[name] / peaks['plain']:.3f}"
              f"   step {1e3 * statistics.median(seconds[name]):8.1f} ms  ratio {ratio:.3f}")


main()
