#!/usr/bin/env python3
"""Writes the weights of timm's ResNet-18 as FILE: the trained ones, which timm downloads, or with --random untrained ones.

    .deps/test-venv/bin/python examples/fine_tuning/weights.py resnet18.pth
"""

import argparse

import timm
import torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("file")
parser.add_argument("--random", action="store_true", help="weights as before any training; nothing is downloaded")
arguments = parser.parse_args()

torch.manual_seed(0)
model = timm.create_model("resnet18", pretrained=not arguments.random)
torch.save(model.state_dict(), arguments.file)
print(f"{len(model.state_dict())} tensors in {arguments.file}")
