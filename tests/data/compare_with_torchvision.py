"""Applies torchvision's v2 functions to the images of a folder and compares the results with those beside them.

cases.txt has a line a case: the expression of x, and type and shape of the input and of the expected result, separated by
tabs; the bytes are in NUMBER.in and NUMBER.out. Prints for each case the largest difference and how many values differ."""

import math
import pathlib
import sys

import numpy as np
import torch
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

torch.set_num_threads(1)
NEAREST = InterpolationMode.NEAREST
NEAREST_EXACT = InterpolationMode.NEAREST_EXACT
BILINEAR = InterpolationMode.BILINEAR
BICUBIC = InterpolationMode.BICUBIC
rand_augment = v2.RandAugment()


def augment(x, name, magnitude, fill=None, interpolation=NEAREST):
    transform = v2.RandAugment(fill=fill)
    return transform._apply_image_or_video_transform(x, name, magnitude, interpolation, transform._fill)


def read(path, kind, shape):
    values = np.fromfile(path, dtype={"uint8": np.uint8, "float": np.float32}[kind])
    return torch.from_numpy(values.reshape([int(n) for n in shape.split()]))


folder = pathlib.Path(sys.argv[1])
for number, line in enumerate((folder / "cases.txt").read_text().splitlines()):
    expression, input_type, input_shape, output_type, output_shape = line.split("\t")
    # The decoder's memory is channels last, as that of a PIL image is.
    x = read(folder / f"{number}.in", input_type, input_shape)
    x = x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    output = read(folder / f"{number}.out", output_type, output_shape)
    expected = eval(expression)
    if tuple(expected.shape) != tuple(output.shape) or expected.dtype != output.dtype:
        print(f"inf 0\t{expression}: {expected.dtype} {tuple(expected.shape)}")
        continue
    difference = (expected.double() - output.double()).abs()
    print(f"{difference.max().item()} {int((difference > 0).sum())}\t{expression}")
