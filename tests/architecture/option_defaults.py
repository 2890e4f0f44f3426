#!/usr/bin/env python3
"""Checks that every member of an options struct has a default: -Wextra warns of designated initialisers that leave out a
member without one, in the code of users too.

    option_defaults.py [ROOT]

Prints one line a member without a default and exits with 1 when there is one.
"""

import re
import sys
from pathlib import Path

SOURCE_FOLDERS = ("core", "strategies", "callbacks", "loggers")
STRUCT = re.compile(r"^struct (\w+Options) \{(.*?)^\};", re.DOTALL | re.MULTILINE)
BRACES = re.compile(r"\{[^{}]*\}")
NOT_A_MEMBER = re.compile(r"(using|static|friend|template|enum|struct|class|explicit|default$)\b|.*\)( const)?$")
# Worked out by Levin, not filled in by users.
EXEMPT = {"ResolvedOptions"}


def structs_of(text):
    """Yields (name, body without comments) of each struct of options in a header."""
    for name, body in STRUCT.findall(re.sub(r"//[^\n]*", "", text)):
        if name not in EXEMPT:
            yield name, body


def members_without_default(body):
    """Yields the declarations of members that have no initialiser."""
    while BRACES.search(body):
        body = BRACES.sub("=", body)  # an initialiser, or the body of a function
    for statement in re.sub(r"\)( const)? *=", r")\1;", body).split(";"):
        declaration = " ".join(statement.split())
        if declaration and "=" not in declaration and not NOT_A_MEMBER.match(declaration):
            yield declaration


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    structs = 0
    found = []
    for path in [path for folder in SOURCE_FOLDERS for path in sorted((root / folder).rglob("*.h"))]:
        for name, body in structs_of(path.read_text(encoding="utf-8")):
            structs += 1
            found += [f"{path.relative_to(root)}: {name}: `{declaration}` needs a default, such as `= {{}}`"
                      for declaration in members_without_default(body)]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found or structs == 0 else 0)


if __name__ == "__main__":
    main()
