#!/usr/bin/env python3
"""Checks who may include whom. The rules are those of docs/architecture.md, "Layers".

    include_direction.py [ROOT]

Prints one line a violation and exits with 1 when there is one.
"""

import re
import sys
from pathlib import Path

SOURCE_FOLDERS = ("core", "strategies", "callbacks", "loggers")
MIDDLE = ("data", "metrics", "precision", "checkpoint", "optim", "nn", "devices")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')

_BELOW_MIDDLE = {"core/base", "core/comm"}
_INTERFACES = _BELOW_MIDDLE | {f"core/{folder}" for folder in MIDDLE} | {"core/interfaces"}
_OPTIONS = _INTERFACES | {"core/options"}
_CONNECTORS = _OPTIONS | {"core/connectors"}
_LOOPS = _CONNECTORS | {"core/loops"}
_TRAINER = _LOOPS | {"core/trainer"}
_CLI = _TRAINER | {"core/planning", "core/cli"}

# What the files of a layer may include, besides their own layer.
ALLOWED = {
    "core/base": set(),
    "core/comm": {"core/base"},
    **{f"core/{folder}": _BELOW_MIDDLE for folder in MIDDLE},
    "core/interfaces": _INTERFACES,
    "core/profilers": _INTERFACES,
    "core/options": _INTERFACES,
    "core/connectors": _OPTIONS,
    "core/loops": _CONNECTORS,
    "core/trainer": _LOOPS,
    "core/planning": _TRAINER,
    "core/cli": _TRAINER | {"core/planning"},
    "core/builtins": _TRAINER | {"core/profilers", "strategies", "callbacks", "loggers"},
    "core/tools": _CLI | {"core/profilers", "core/builtins", "core/levin.h"},
    "core/levin.h": _CLI | {"core/profilers", "core/builtins", "strategies", "callbacks", "loggers"},
    "strategies": _INTERFACES,
    "callbacks": _INTERFACES,
    "loggers": {"core/base"},
}
# Single headers beyond a layer's rule.
ALLOWED_FILES = {"loggers": {"core/interfaces/logger.h"}}
# The trainer makes objects from names: it needs the declarations of the registration, not of what is registered.
ALLOWED_FILES_OF_SOURCES = {"core/options": {"core/builtins.h"}, "core/cli": {"core/builtins.h"}}

# Sources without a header, and headers without a source, are fine; a source whose header is named otherwise is not.
SOURCES_WITHOUT_HEADER = {"core/base/fmt_library.cpp"}

# Several sources behind one header: one a kind of team, one a kind of device.
SHARED_HEADERS = {
    "strategies/comm/process_team.cpp": "strategies/comm/shared_memory_team.h",
    "strategies/comm/thread_team.cpp": "strategies/comm/shared_memory_team.h",
    "strategies/ddp/batch_norm_over_ranks_cpu.cpp": "strategies/ddp/batch_norm_over_ranks.h",
    "strategies/ddp/batch_norm_over_ranks_cuda.cpp": "strategies/ddp/batch_norm_over_ranks.h",
}


def layer_of(path):
    """The layer of a path relative to the root, such as "core/data" or "strategies"; None for what has no layer."""
    parts = Path(path).parts
    if parts[0] != "core":
        return parts[0] if parts[0] in SOURCE_FOLDERS else None
    if len(parts) > 2:
        return "/".join(parts[:2])
    return "core/levin.h" if parts[1] == "levin.h" else "core/" + Path(parts[1]).stem


def includes_of(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


def project_path(included):
    """The path relative to the root of <levin/...>; None for what is not the project's."""
    if included == "levin/levin.h":
        return "core/levin.h"
    return included.removeprefix("levin/") if included.startswith("levin/") else None


def check_include(path, style, included):
    """The violations, as words, of one #include in a source file of the library."""
    layer = layer_of(path)
    is_source = path.endswith(".cpp")
    if style == '"':
        return [f'"{included}": project headers are included as <levin/...>']
    if included == "torch/torch.h" and not is_source and path != "core/levin.h":
        return ["<torch/torch.h> stays out of headers (core/levin.h alone has it)"]
    if included == "levin/build_info.h":
        return []
    target = project_path(included)
    if target is None:
        return []
    if layer not in ALLOWED:
        return [f"the layer {layer} is not in this script's table"]
    target_layer = layer_of(target)
    allowed_files = set(ALLOWED_FILES.get(layer, ()))
    if is_source:
        allowed_files |= ALLOWED_FILES_OF_SOURCES.get(layer, set())
    # Callbacks reach the trainer in their sources, so that no header depends on it.
    if layer == "callbacks" and is_source and target_layer in ("core/options", "core/trainer"):
        return []
    if target_layer == layer or target_layer in ALLOWED[layer] or target in allowed_files:
        return []
    return [f"{layer} must not include {target_layer} (<{included}>)"]


def check_user_code(path, included):
    """Examples and integration tests are users: they see the umbrella header only."""
    target = project_path(included)
    if target is None or target == "core/levin.h" or included == "levin/build_info.h":
        return []
    return [f"{Path(path).parts[0]} includes levin/levin.h only, not <{included}>"]


def check_pair(root, path):
    """A source's first include is its own header, named alike."""
    if path in SOURCES_WITHOUT_HEADER or layer_of(path) == "core/tools":
        return []
    header = SHARED_HEADERS.get(path, str(Path(path).with_suffix(".h")))
    if not (root / header).exists():
        return [f"has no header {header}"]
    includes = list(includes_of(root / path))
    if not includes or project_path(includes[0][2]) != header:
        return [f"includes its own header <levin/{header}> first"]
    return []


def violations(root):
    for folder in SOURCE_FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            path = str(file.relative_to(root))
            for number, style, included in includes_of(file):
                for words in check_include(path, style, included):
                    yield f"{path}:{number}: {words}"
            if file.suffix == ".cpp":
                for words in check_pair(root, path):
                    yield f"{path}: {words}"
    for folder in ("examples", "tests/integration"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".h", ".cpp"):
                path = str(file.relative_to(root))
                for number, _, included in includes_of(file):
                    for words in check_user_code(path, included):
                        yield f"{path}:{number}: {words}"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    found = list(violations(root))
    print("\n".join(found) if found else "include direction: no violation")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
