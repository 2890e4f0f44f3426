#!/usr/bin/env python3
"""Compiles small programs with one mistake each: the first message must hold the sentence that tells the user what to
write, and few lines must follow.

    run.py COMPILER [FLAG...]
"""

import re
import subprocess
import sys
from pathlib import Path

# What g++ and clang print around one static_assert: the call, where it was asked for, the sentence and its place.
MOST_LINES = 20


def complaint(source, command):
    """What is wrong with the compiler's answer, or None."""
    expected = re.match(r"// expected: (.*)", source.read_text(encoding="utf-8"))[1]
    finished = subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False,
                              env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    lines = finished.stderr.splitlines()
    messages = [line for line in lines if re.search(r": (error|warning): ", line)]
    if not messages:
        return "compiles without a message"
    first = lines.index(messages[0])
    shown = "\n".join(lines[:40])
    # The sentence is in the message itself, or in a note on the call that it names.
    if expected not in "\n".join(lines[first:first + 8]):
        return f"'{expected}' is not in the first message:\n{shown}"
    if len(lines) > MOST_LINES:
        return f"{len(lines)} lines instead of at most {MOST_LINES}:\n{shown}"
    return None


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sources = sorted(Path(__file__).parent.glob("*.cpp"))
    complaints = {source.name: complaint(source, sys.argv[1:]) for source in sources}
    for name, text in complaints.items():
        if text is not None:
            print(f"{name}: {text}\n")
    sys.exit(1 if any(complaints.values()) or not sources else 0)


if __name__ == "__main__":
    main()
