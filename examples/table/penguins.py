#!/usr/bin/env python3
"""Writes penguins.csv: measurements of 344 penguins of three species, some of them missing (Gorman, Williams and Fraser,
2014; in the public domain), which the package palmerpenguins ships (scripts/bootstrap --with-test-packages installs it):

    .deps/venv/bin/python examples/table/penguins.py penguins.csv
"""

import argparse
import pathlib
import shutil
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("output", type=pathlib.Path)
parser.add_argument("--file", type=pathlib.Path, help="penguins.csv of palmerpenguins; default: that of .deps/test-venv")
arguments = parser.parse_args()

found = [arguments.file] if arguments.file else sorted(
    pathlib.Path(__file__).resolve().parents[2].glob(
        ".deps/test-venv/lib/python3*/site-packages/palmerpenguins/data/penguins.csv"))
if not found:
    sys.exit("penguins.py: palmerpenguins is not there; hint: scripts/bootstrap --with-test-packages, or --file")
shutil.copyfile(found[0], arguments.output)
print(f"{arguments.output}: {len(arguments.output.read_text().splitlines()) - 1} penguins")
