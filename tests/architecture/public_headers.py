#!/usr/bin/env python3
"""Checks cmake/public_headers.txt, the list of the headers that are installed: it has what users name (levin.h and what is
listed before the line "# parts"), what these, the sources of core/python and those of callbacks and loggers include, and
nothing else.

    public_headers.py [ROOT]

Prints one line a violation and exits with 1 when there is one.
"""

import re
import sys
from pathlib import Path

import include_direction

LIST = "cmake/public_headers.txt"
PARTS = "# parts"


def read_list(root):
    """The headers that users name, and those that these are made of."""
    lines = [line.strip() for line in (root / LIST).read_text(encoding="utf-8").splitlines()]
    split = lines.index(PARTS)
    named, parts = ([line for line in part if line and not line.startswith("#")] for part in (lines[:split], lines[split:]))
    return named, parts


def included_by(root, headers):
    """All headers of the library that these include, directly or through others."""
    reached, left = set(), list(headers)
    while left:
        for _, _, included in include_direction.includes_of(root / left.pop()):
            target = include_direction.project_path(included)
            if target and target not in reached and (root / target).exists():
                reached.add(target)
                left.append(target)
    return reached


def violations(root):
    named, parts = read_list(root)
    umbrella = set(re.findall(r"^#include <levin/(.*)>$", (root / "core/levin.h").read_text(encoding="utf-8"), re.MULTILINE))
    for title, listed in (("named", named), ("parts", parts)):
        if listed != sorted(set(listed)):
            yield f"{LIST}: the {title} headers are not sorted, each once"
    for header in sorted(umbrella - set(named)):
        yield f"{LIST}: {header} is missing, which levin/levin.h includes"
    needed = included_by(root, [header for header in named if (root / header).exists()])
    for header in sorted(needed - set(named) - set(parts)):
        yield f"{LIST}: {header} is missing among the parts, which a public header includes"
    for source in sorted((root / "core/python").glob("*.cpp")):
        for _, _, included in include_direction.includes_of(source):
            target = include_direction.project_path(included)
            if target and target not in set(named) | set(parts):
                yield f"{LIST}: {target} is missing, which core/python/{source.name} includes, that users compile"
    # tests/install compiles these against the installed package: what they can do, a user's own can.
    for source in sorted(path for folder in ("callbacks", "loggers") for path in (root / folder).glob("*.[ch]*")):
        for _, _, included in include_direction.includes_of(source):
            target = include_direction.project_path(included)
            if target and target.startswith("core/") and target not in set(named) | set(parts):
                yield f"{LIST}: {target} is missing, which {source.parent.name}/{source.name} includes, that users could have written"
    for header in sorted((set(named) | set(parts)) - {"core/levin.h"}):
        if not (root / header).exists():
            yield f"{LIST}: there is no {header}"
        elif header in parts and (header in named or header not in needed):
            yield f"{LIST}: {header} is a part of no public header, or is one itself"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    found = list(violations(root))
    print("\n".join(found) if found else "public headers: no violation")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
