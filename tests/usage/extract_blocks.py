#!/usr/bin/env python3
"""Makes one C++ source of the C++ blocks of Markdown pages, so that what the pages show is known to compile.

    extract_blocks.py OUTPUT PAGE.md...

Each page becomes a namespace named after its file (docs/usage.md: pages::usage) with its blocks in this order: types and
functions, `main` as `program_main`, then blocks of bare statements, each in a function of its own. Later blocks of a page
see the types of all others. Compile errors point to the page's line.
"""

import re
import sys
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\s*$")
INCLUDE = re.compile(r"^\s*#\s*include\s+[<\"].*$")
MAIN = re.compile(r"^int main\(", re.MULTILINE)
DECLARATION = re.compile(r"^(class|struct|enum|template|namespace|using|int main|LEVIN_UNIT|TORCH_MODULE)\b")
KEYWORDS = {"export"}
FUNCTION = re.compile(r"^(?!(if|for|while|switch|else|return)\b)[\w:]+\s+\w+\(.*\)\s*\{$")


def blocks_of(text, language="cpp"):
    """Yields (number of the first line, lines) of each fenced block in a language."""
    opened = None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence and fence[1]:
                opened, first, lines = fence[1], number + 1, []
        elif fence and not fence[1]:
            if opened == language:
                yield first, lines
            opened = None
        else:
            lines.append(line)
    if opened is not None:
        raise ValueError(f"the block that begins in line {first} has no end")


def is_declaration(lines):
    """Whether a block declares things, as opposed to statements that belong into a function."""
    for line in lines:
        if line.strip() and not INCLUDE.match(line) and not line.startswith("//"):
            return DECLARATION.match(line) is not None or FUNCTION.match(line) is not None
    return True


def source_of(pages):
    """The text of the C++ source for [(path as shown to the user, text)]."""
    includes = []
    bodies = []
    for path, text in pages:
        declarations, programs, statements = [], [], []
        for first, lines in blocks_of(text):
            for line in lines:
                if INCLUDE.match(line) and line.strip() not in includes:
                    includes.append(line.strip())
            # An empty line in the include's place keeps the numbers of the lines.
            code = "\n".join("" if INCLUDE.match(line) else line for line in lines)
            located = f'#line {first} "{path}"\n'
            if not is_declaration(lines):
                name = f"statements_of_line_{first}"
                statements.append(f"void {name}();\nvoid {name}() {{\n{located}{code}\n}}\n")
            elif MAIN.search(code):
                programs.append(located + MAIN.sub("int program_main(", code) + "\n")
            else:
                declarations.append(located + code + "\n")
        namespace = re.sub(r"\W", "_", Path(path).stem.lower())
        if namespace in KEYWORDS:
            namespace += "_page"
        body = "\n".join(declarations + programs + statements)
        bodies.append(f"namespace pages::{namespace} {{\n\n{body}\n}}  // namespace pages::{namespace}\n")
    names = ", ".join(path for path, _ in pages)
    return f"// Made by tests/usage/extract_blocks.py of {names}.\n\n" + "\n".join(includes) + "\n\n" + "\n".join(bodies)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    pages = [(path, Path(path).read_text(encoding="utf-8")) for path in sys.argv[2:]]
    Path(sys.argv[1]).write_text(source_of(pages), encoding="utf-8")


if __name__ == "__main__":
    main()
