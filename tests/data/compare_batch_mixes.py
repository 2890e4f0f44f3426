"""Mixes batches with torchvision's MixUp and CutMix and compares the results with those in the folder.

cases.txt has a line a batch: the name of the class, the numbers that were drawn, and the shape of the images. The bytes are
in NUMBER.image and NUMBER.label before, in NUMBER.mixed and NUMBER.probabilities after. Prints "equal" or what differs."""

import pathlib
import sys

import numpy as np
import torch
from torchvision.transforms import v2

NUM_CLASSES = 10
folder = pathlib.Path(sys.argv[1])


def read(number, name, dtype, *shape):
    return torch.from_numpy(np.fromfile(folder / f"{number}.{name}", dtype=dtype).reshape(shape))


for number, line in enumerate((folder / "cases.txt").read_text().splitlines()):
    name, weight, top, bottom, left, right, *shape = line.split()
    shape = [int(size) for size in shape]
    images, labels = read(number, "image", np.float32, *shape), read(number, "label", np.int64, shape[0])
    drawn = {"lam": float(weight), "lam_adjusted": float(weight), "box": (int(left), int(top), int(right), int(bottom))}
    transform = getattr(v2, name)(num_classes=NUM_CLASSES)
    transform.make_params = lambda inputs: drawn
    expected, probabilities = transform(images, labels)
    same_images = torch.equal(expected, read(number, "mixed", np.float32, *shape))
    same_labels = torch.equal(probabilities, read(number, "probabilities", np.float32, shape[0], NUM_CLASSES))
    print("equal" if same_images and same_labels else f"{line}: images {same_images}, labels {same_labels}")
