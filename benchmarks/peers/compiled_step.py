"""A training step of PyTorch, eager and by torch.compile, beside the same step of recorded_step_benchmark: processor time.

    python benchmarks/peers/compiled_step.py [rounds] [words]     words: works whose name has them

One core, one thread, one process a run, one after another. The step is forward, loss, backward and AdamW(fused=True) where
eager; compiled is the whole of it, with the AdamW that torch.compile writes itself or the fused one, whichever is faster.
Batches are gathered as recorded_step_benchmark does by hand. Compiling is not counted. Needs a C++ compiler and python3-dev.
"""

import os
import statistics
import subprocess
import sys
import time

BENCHMARK = "build/bin/recorded_step_benchmark"
HOWS = 5  # of recorded_step_benchmark: its variants of a work; 0 is by hand, 2 is with `graph: true`
WARM_UP = 50


def transformer(layers, width, length):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.projections, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            parts = self.projections(self.first_norm(x)).view(*x.shape[:2], 3, 4, width // 4).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            y = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
            return y + self.narrow(F.gelu(self.widen(self.second_norm(y))))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.positions = nn.Embedding(128, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)
            self.register_buffer("places", torch.arange(length))

        def forward(self, x):
            h = self.blocks(self.embedding(x) + self.positions(self.places))
            return self.head(self.norm(h)).view(-1, 128)

    return Transformer()


def mlp(dropout=0.0):
    from torch import nn

    layers = [nn.Linear(784, 128), nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
    return nn.Sequential(*layers, nn.Linear(128, 10))


def cnn():
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10))


def images(examples, *shape):
    import torch

    return torch.randn(examples, *shape), torch.randint(10, (examples,))


def tokens(length):
    import torch

    return torch.randint(64, (2048, length)), torch.randint(64, (2048, length))


# Name, index among the works of recorded_step_benchmark, batch size, steps a run, model, data.
WORKS = [
    ("MLP 784-128-10, batch 32", 0, 32, 6000, mlp, lambda: images(60000, 784)),
    ("MLP 784-128-10, batch 64", 1, 64, 4000, mlp, lambda: images(60000, 784)),
    ("MLP with dropout, batch 32", 2, 32, 6000, lambda: mlp(0.3), lambda: images(60000, 784)),
    ("transformer 2x64, batch 4x32", 3, 4, 1500, lambda: transformer(2, 64, 32), lambda: tokens(32)),
    ("transformer 4x256, batch 8x128", 4, 8, 40, lambda: transformer(4, 256, 128), lambda: tokens(128)),
    ("CNN 16-32, batch 64", 6, 64, 200, cnn, lambda: images(2048, 1, 28, 28)),
]


def run(work, how):
    """Seconds of processor time of the steps of a run."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    _, _, batch_size, steps, make, data = WORKS[work]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01,
                                  **({"foreach": True} if how == "compiled" else {"fused": True}))

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    if how != "eager":
        step = torch.compile(step)
    x, y = data()
    batches = len(x) // batch_size
    done = 0
    started = 0.0
    while done < WARM_UP + steps:
        order = torch.randperm(len(x))
        for batch in range(batches):
            if done == WARM_UP:
                started = time.process_time()
            if done == WARM_UP + steps:
                break
            indices = order.narrow(0, batch * batch_size, batch_size)
            step(x.index_select(0, indices), y.index_select(0, indices))
            done += 1
    return time.process_time() - started


def in_process(*command):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return float(subprocess.run(["taskset", "-c", "0", *command], check=True, capture_output=True, text=True,
                                env=environment).stdout.split()[-1])


def main():
    if sys.argv[1:2] == ["--run"]:
        print(run(int(sys.argv[2]), sys.argv[3]))
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    words = sys.argv[2] if len(sys.argv) > 2 else ""
    for i, (name, work, _, steps, _, _) in enumerate(WORKS):
        if words not in name:
            continue
        python = lambda how: in_process(sys.executable, __file__, "--run", str(i), how)
        levin = lambda how: in_process(BENCHMARK, "--variant", str(work * HOWS + how), str(steps))
        runs = {
            "PyTorch, eager, fused AdamW": lambda: python("eager"),
            "torch.compile, its own AdamW": lambda: python("compiled"),
            "torch.compile, fused AdamW": lambda: python("compiled_fused"),
            "LibTorch by hand": lambda: levin(0),
            "Levin, graph: true": lambda: levin(2),
        }
        seconds = {what: [] for what in runs}
        for _ in range(rounds):
            for what, measure in runs.items():
                seconds[what].append(measure() / steps)
        print(f"{name}, {steps} steps a run, {rounds} rounds")
        for what, values in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(values, seconds["LibTorch by hand"]))
            print(f"  {ratio:.3f}  {what}: {1e6 * statistics.median(values):.1f} us a step", flush=True)


if __name__ == "__main__":
    main()
