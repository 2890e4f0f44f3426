#!/usr/bin/env python3
"""Writes 200 small photographs, half of them of faces, as FOLDER/face/*.jpg and FOLDER/other/*.jpg.

They are a part of Labeled Faces in the Wild that the package scikit-image ships (scripts/bootstrap --with-test-packages
installs it). This script needs NumPy and Pillow:

    .deps/venv/bin/python examples/image_folder/photographs.py photographs
"""

import argparse
import pathlib
import sys

import numpy as np
from PIL import Image

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--file", type=pathlib.Path, help="lfw_subset.npy of scikit-image; default: that of .deps/test-venv")
arguments = parser.parse_args()

found = [arguments.file] if arguments.file else sorted(
    pathlib.Path(__file__).resolve().parents[2].glob(".deps/test-venv/lib/python3*/site-packages/skimage/data/lfw_subset.npy"))
if not found:
    sys.exit("photographs.py: scikit-image is not there; hint: scripts/bootstrap --with-test-packages, or --file")
images = np.load(found[0])  # [200, 25, 25], 0 to 1; the first half are faces
for number, image in enumerate(images):
    folder = arguments.folder / ("face" if number < len(images) // 2 else "other")
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255).astype(np.uint8)).save(folder / f"{number:03}.jpg", quality=95)
print(f"{len(images)} photographs in {arguments.folder}")
