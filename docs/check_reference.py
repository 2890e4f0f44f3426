#!/usr/bin/env python3
"""Names the public types that no comment describes: check_reference.py DOXYGEN_XML_FOLDER."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def has_text(element):
    return element is not None and "".join(element.itertext()).strip() != ""


def documented(element):
    return has_text(element.find("briefdescription")) or has_text(element.find("detaileddescription"))


def needs_comment(name):
    """A specialisation is described where its template is, a nested type by its class, options by describe()."""
    scope, _, last = name.rpartition("::")
    return "<" not in name and not last.endswith("Options") and not any(part[:1].isupper() for part in scope.split("::"))


def undocumented_types(folder):
    index = ElementTree.parse(folder / "index.xml").getroot()
    for entry in index.iter("compound"):
        kind, name = entry.get("kind"), entry.findtext("name")
        if kind not in ("class", "struct", "concept", "namespace") or "detail" in name.split("::"):
            continue
        definition = ElementTree.parse(folder / f"{entry.get('refid')}.xml").getroot().find("compounddef")
        if kind != "namespace" and needs_comment(name) and not documented(definition):
            yield f"{location(definition)}: {kind} {name}"
        if kind == "namespace":
            for member in definition.iter("memberdef"):
                if member.get("kind") == "enum" and not documented(member):
                    yield f"{location(member)}: enum {name}::{member.findtext('name')}"


def location(element):
    place = element.find("location")
    return f"{place.get('file')}:{place.get('line')}" if place is not None else "?"


def main():
    found = list(undocumented_types(Path(sys.argv[1])))
    for line in found:
        print(f"{line} has no /// comment", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
