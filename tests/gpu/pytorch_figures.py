"""Times of the steps of gpu_figures_test.cpp's models in PyTorch: eager, compiled, and replayed from a CUDA graph.

    pytorch_figures.py DEVICE MODEL [small]

Prints "figure" and a JSON object for each, as gpu_figures_test.cpp does, and once "flops MODEL NUMBER" of a step.
"""

import json
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

DEVICE = torch.device(sys.argv[1])
SMALL = "small" in sys.argv[3:]


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(2, (-1, 64)).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        vocabulary, width, layers = (128, 64, 1) if SMALL else (50257, 768, 12)
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.h = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, 0, 0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return F.linear(self.ln_f(self.h(self.wte(tokens) + self.wpe(places))), self.wte.weight)


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride > 1 or channels != 4 * width:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn3(self.conv3(y)) + shortcut)


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(channels, 64 << stage, 2 if i == 0 and stage > 0 else 1))
            channels = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, 1000))


def batch_of(name):
    if name == "MLP":
        size = 8 if SMALL else 512
        return torch.randn(size, 784), torch.randint(0, 10, (size,))
    if name == "GPT-2":
        tokens = torch.randint(0, 128, (2, 8)) if SMALL else torch.randint(0, 50257, (8, 1024))
        return tokens, tokens
    size, pixels = (2, 32) if SMALL else (64, 224)
    return torch.randn(size, 3, pixels, pixels), torch.randint(0, 1000, (size,))


MODELS = {"MLP": (mlp, 20, 300), "GPT-2": (Gpt2, 12, 40), "ResNet-50": (resnet50, 12, 40)}


def wait():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize(DEVICE)


def loss_of(net, x, y):
    with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=False):
        return F.cross_entropy(net(x).flatten(0, -2), y.flatten())


class Steps:
    """Steps on one batch, which is copied from page-locked memory each time."""

    def __init__(self, net, batch, captured):
        self.net = net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True, capturable=captured)
        self.host = [tensor.pin_memory() if DEVICE.type == "cuda" else tensor for tensor in batch]
        self.device = [tensor.to(DEVICE) for tensor in batch]
        self.graph = None

    def ordinary(self):
        x, y = (tensor.to(DEVICE, non_blocking=True) for tensor in self.host)
        self.optimizer.zero_grad(set_to_none=True)
        loss_of(self.net, x, y).backward()
        self.optimizer.step()

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.ordinary()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            loss_of(self.net, *self.device).backward()
            self.optimizer.step()

    def replayed(self):
        for tensor, source in zip(self.device, self.host):
            tensor.copy_(source, non_blocking=True)
        self.graph.replay()


def trace_of(step):
    """The file with a trace of four steps."""
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=4, repeat=1)
    path = tempfile.mkdtemp() + "/trace.json"
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(
        activities=activities, schedule=schedule, on_trace_ready=lambda done: done.export_chrome_trace(path)
    ) as profiler:
        for _ in range(8):
            step()
            profiler.step()
    return path


def measure(name, who, step, warm_up, steps, net, size):
    for _ in range(warm_up):
        step()
    wait()
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    seconds = time.perf_counter() - begin
    on_gpu = DEVICE.type == "cuda"
    figure = {
        "who": who,
        "model": name,
        "parameters": sum(p.numel() for p in net.parameters()),
        "examples": size,
        "ms": 1000 * seconds / steps,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0,
        "trace": trace_of(step) if on_gpu else "",
    }
    print("figure", json.dumps(figure), flush=True)


name = sys.argv[2]
build, warm_up, steps = MODELS[name]
if SMALL:
    warm_up, steps = 1, 2
batch = batch_of(name)
size = len(batch[0])

net = build().to(DEVICE)
with FlopCounterMode(display=False) as counter:
    loss_of(net, *(tensor.to(DEVICE) for tensor in batch)).backward()
print("flops", name, counter.get_total_flops(), flush=True)

eager = Steps(net, batch, captured=False)
measure(name, "PyTorch eager", eager.ordinary, warm_up, steps, net, size)
if DEVICE.type == "cuda":
    del eager, net
    torch.cuda.empty_cache()
    net = build().to(DEVICE)
    graph = Steps(net, batch, captured=True)
    graph.capture()
    measure(name, "PyTorch, CUDA graph by hand", graph.replayed, warm_up, steps, net, size)
    del graph, net
    torch.cuda.empty_cache()
    net = build().to(DEVICE)
    compiled = Steps(torch.compile(net), batch, captured=False)
    measure(name, "torch.compile", compiled.ordinary, warm_up, steps, net, size)
