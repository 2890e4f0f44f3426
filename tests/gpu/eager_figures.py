"""Steps a second of the models of gpu_figures_test.cpp in PyTorch eager, in plain torch.

    eager_figures.py DEVICE [small]

Prints "figure NAME PRECISION PARAMETERS STEPS_PER_SECOND" for each.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = torch.device(sys.argv[1])
SMALL = "small" in sys.argv[2:]
WARM_UP, STEPS = (1, 2) if SMALL else (20, 100)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = self.projections(self.attention_norm(x)).view(n, t, 3, -1, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.narrow(F.gelu(self.widen(self.norm(x))))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride, projects):
        super().__init__()
        self.preact = nn.BatchNorm2d(channels, eps=1.001e-5)
        self.shortcut = nn.Conv2d(channels, 4 * width, 1, stride) if projects else None
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, 4 * width, 1)
        self.bn1, self.bn2 = (nn.BatchNorm2d(width, eps=1.001e-5) for _ in range(2))
        self.stride = stride

    def forward(self, x):
        active = F.relu(self.preact(x))
        if self.shortcut is not None:
            x = self.shortcut(active)
        elif self.stride > 1:
            x = F.max_pool2d(x, 1, self.stride)
        y = F.relu(self.bn1(self.conv1(active)))
        return x + self.conv3(F.relu(self.bn2(self.conv2(y))))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.ZeroPad2d(1), nn.MaxPool2d(3, 2)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            stride = 2 if i == blocks - 1 and stage < 3 else 1
            layers.append(Bottleneck(channels, 64 << stage, stride, i == 0))
            channels = 256 << stage
    layers += [nn.BatchNorm2d(channels, eps=1.001e-5), nn.ReLU(), Mean(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers)


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def transformer():
    width, depth = (64, 1) if SMALL else (512, 6)
    return nn.Sequential(nn.Embedding(128, width), *(Layer(width) for _ in range(depth)), nn.Linear(width, 128))


def batch_of(name):
    if name == "mlp":
        size = 8 if SMALL else 512
        return torch.randn(size, 784), torch.randint(0, 10, (size,))
    if name == "transformer":
        tokens = torch.randint(0, 128, (2, 8) if SMALL else (16, 256))
        return tokens, tokens
    size, pixels = (2, 32) if SMALL else (64, 128)
    return torch.randn(size, 3, pixels, pixels), torch.randint(0, 10, (size,))


def wait():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize(DEVICE)


def measure(name, build, precision):
    net = build().to(DEVICE)
    if name == "resnet50":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    inputs, labels = batch_of(name)
    if DEVICE.type == "cuda":
        inputs, labels = inputs.pin_memory(), labels.pin_memory()
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            wait()
            begin = time.perf_counter()
        x, y = inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
            logits = net(x)
            loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
    wait()
    seconds = time.perf_counter() - begin
    print("figure", name, precision, sum(p.numel() for p in net.parameters()), STEPS / seconds, flush=True)


for model, build in (("mlp", mlp), ("transformer", transformer), ("resnet50", resnet50)):
    for kind in ("32-true", "bf16-mixed"):
        measure(model, build, kind)
