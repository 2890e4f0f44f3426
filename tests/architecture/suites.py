#!/usr/bin/env python3
"""Every row of tests/suites.txt names a suite that is there, and says of it what RegisterTests.cmake understands.

    suites.py BUILD
"""

import re
import sys
from pathlib import Path

KINDS = re.compile(r"apart|system|long:[a-z0-9_]+")


def alternatives(pattern):
    """The patterns that one with at most one group of alternatives stands for: a(b|c)d is abd and acd."""
    group = re.fullmatch(r"(.*?)\(([^()]*)\)(.*)", pattern)
    if not group:
        return [pattern]
    return [rest for choice in group[2].split("|") for rest in alternatives(group[1] + choice + group[3])]


def complaints(rows, suites):
    for row in rows:
        pattern, kinds, *_ = row.split()
        unknown = [kind for kind in kinds.split(",") if not KINDS.fullmatch(kind)]
        if unknown:
            yield f"{row}: unknown kind {unknown[0]}; valid: apart, system, long:GROUP"
        for name in alternatives(pattern):
            if not any(re.fullmatch(name, suite) for suite in suites):
                yield f"{row}: no suite is called {name}; hint: remove it"


def main():
    tests = Path(sys.argv[1]) / "tests"
    suites = set()
    for entries in tests.glob("*_entries.cmake"):
        suites.update(re.findall(r"^add_test\(\[==\[(.+?)\]==\]", entries.read_text(encoding="utf-8"), re.M))
    if not suites:
        sys.exit(f"no entries in {tests}; hint: scripts/build")
    table = Path(__file__).resolve().parents[1] / "suites.txt"
    rows = [line for line in table.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    found = list(complaints(rows, suites))
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
