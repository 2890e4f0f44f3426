#!/usr/bin/env python3
"""Writes docs/headers.md, the page that says which header has what, to standard output: header_table.py [ROOT]."""

import re
import sys
from pathlib import Path

import declarations

HEAD = """# Which header has what

<!-- Written by scripts/docs from the headers: change those, not this page. -->

`#include <levin/levin.h>` brings in all of these and LibTorch. Names are in namespace `levin`; those with `()` are functions or macros, and
the options of a class `X` are the struct `XOptions` beside it. `scripts/docs` also makes the API reference, with the comments of all.
"""
SECTIONS = {
    "core/trainer": "Trainer",
    "core/engine": "Steps without a loop",
    "core/options": "The trainer's options",
    "core/cli": "Programs with a command line",
    "core/sweep": "Where the runs of a sweep go",
    "core/interfaces": "What users derive from",
    "core/comm": "Failures of ranks",
    "core/data": "Data",
    "core/accelerators": "Devices",
    "core/devices": "Memory of tensors",
    "core/metrics": "Metrics",
    "core/optim": "Optimizers and schedulers",
    "core/nn": "Units",
    "core/models": "Language models",
    "core/export": "Models out",
    "core/interchange": "Weights to and from other programs",
    "core/checkpoint": "Checkpoints",
    "core/base": "Options, names, state, messages",
    "core/precision": "Precisions",
    "core/profilers": "Profilers",
    "callbacks": "Callbacks",
    "loggers": "Loggers",
    "strategies": "Strategies",
}


def public_headers(root):
    """The headers that levin/levin.h includes, as paths in the tree."""
    text = (root / "core/levin.h").read_text(encoding="utf-8")
    return re.findall(r"^#include <levin/(.*)>$", text, re.MULTILINE)


def words(names):
    """Without the options of a class that is there too."""
    return [name for name in names if not (name.endswith("Options") and name.removesuffix("Options") in names)]


def section_of(header):
    """The folder of SECTIONS that has the header, in a folder of its own or not."""
    return max((folder for folder in SECTIONS if header.startswith(folder + "/")), key=len, default=None)


def page(root):
    headers = public_headers(root)
    parts = [HEAD]
    for folder, title in SECTIONS.items():
        rows = []
        for header in headers:
            if section_of(header) == folder:
                names = words(declarations.public_names((root / header).read_text(encoding="utf-8")))
                rows.append(f"| `levin/{header}` | {', '.join(f'`{name}`' for name in names)} |")
        parts.append("\n".join([f"## {title}", "", "| header | has |", "|---|---|", *rows, ""]))
    left = [header for header in headers if section_of(header) is None]
    if left:
        raise ValueError(f"no section of the page has {', '.join(left)}; hint: add its folder to SECTIONS")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
