"""Prints the images that torchvision's ImageFolder finds in a folder, with their labels."""

import sys

from torchvision.datasets import ImageFolder

for path, label in ImageFolder(sys.argv[1]).samples:
    print(path, label)
