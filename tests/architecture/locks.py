#!/usr/bin/env python3
"""Checks that the library's locks are those of core/base/mutex.h, whose use clang checks, and that each says what it guards.

    locks.py [ROOT]

Prints one line a violation and exits with 1 when there is one.
"""

import re
import sys
from pathlib import Path

import include_direction

MUTEX_HEADER = "core/base/mutex.h"
UNCHECKED = re.compile(r"\bstd::(\w+_)?mutex\b|\bstd::condition_variable(_any)?\b|\bpthread_(mutex|cond|rwlock)_t\b")
DECLARED = re.compile(r"\bMutex (\w+)(?: LEVIN_\w+\([^;]*\))?;")

# Files, and folders with a slash, that have other locks, each with the reason why.
MAY_BE_UNCHECKED = {
    "core/nn/checkpointed_call.cpp": "its lock is recursive, which the analysis of clang 19 does not know",
}
# Locks that guard no variable, each with what they are for.
GUARDS_NO_VARIABLE = {
    ("callbacks/nan_monitor.h", "mutex_"): "units of replicas: between forwards the same members are used without it",
    ("core/connectors/data_connector.cpp", "mutex"): "the hooks of a data module that ranks share are called one at a time",
    ("core/nn/flop_counter.cpp", "all"): "a local variable, which LEVIN_REQUIRES names by its function",
    ("loggers/mlflow_refused.h", "mutex_"): "a file",
    ("strategies/comm/gloo_backend.cpp", "one_at_a_time"): "the sockets of the process",
    ("strategies/launchers/core_share.cpp", "mutex"): "LibTorch's number of threads",
}


def code_of(root, path):
    """The lines of a file, without comments."""
    return [line.split("//")[0] for line in (root / path).read_text(encoding="utf-8").splitlines()]


def violations(root, may_be_unchecked, guards_no_variable):
    unused = {*may_be_unchecked, *guards_no_variable}
    for path in include_direction.library_files(root):
        if path == MUTEX_HEADER:
            continue
        lines = code_of(root, path)
        text = "\n".join(lines)
        for number, line in enumerate(lines, 1):
            found = UNCHECKED.search(line)
            if found:
                allowed = [place for place in may_be_unchecked if path == place or (place[-1] == "/" and path.startswith(place))]
                unused -= set(allowed)
                if not allowed:
                    yield f"{path}:{number}: {found[0]} is not checked by the compiler; valid: what {MUTEX_HEADER} has"
            declared = DECLARED.search(line)
            if declared is None or re.search(rf"LEVIN_(GUARDED_BY|REQUIRES)\((\w+(\.|->))*{declared[1]}\)", text):
                continue
            unused.discard((path, declared[1]))
            if (path, declared[1]) not in guards_no_variable:
                yield f"{path}:{number}: no LEVIN_GUARDED_BY says what {declared[1]} guards"
    for place in sorted(map(str, unused)):
        yield f"the lists of exceptions name {place}, which is none any more"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    found = list(violations(root, MAY_BE_UNCHECKED, GUARDS_NO_VARIABLE))
    print("\n".join(found) if found else "locks: no violation")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
