#!/usr/bin/env python3
"""Checks who may include whom, that file pairs do not include each other in a circle, and that nothing outside of the
accelerators knows CUDA. The rules are those of docs/architecture.md, "Layers".

    include_direction.py [ROOT]

Prints one line a violation and exits with 1 when there is one.
"""

import re
import sys
from pathlib import Path

SOURCE_FOLDERS = ("core", "strategies", "callbacks", "loggers")
MIDDLE = ("data", "metrics", "precision", "checkpoint", "optim", "nn", "devices")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')

# What only an accelerator may know; what is not a layer of its own but serves one kind of device is named.
CUDA = re.compile(
    r"\bis_cuda\b|\bkCUDA\b|(DispatchKey|DeviceType|Backend)::CUDA\b|LEVIN_HAS_CUDA|\bhasCUDA\b|\bgetCUDAHooks\b"
    r"|\b(at|c10|torch)::cuda::|#\s*include <(c10/cuda|ATen/cuda|ATen/cudnn|cuda|cudnn|cublas|nccl|nvml|nvToolsExt)"
)
# Decisions by the name of the accelerator, each with its reason.
CUDA_BY_NAME = re.compile(r"""\bfind\("cuda"\)|[!=]= *"cuda"|"cuda" *[!=]=|(starts_with|compare)\("cuda""")
MAY_NAME_CUDA = {
    "core/devices/device_spec.cpp": "accelerator: gpu and the option gpus mean CUDA's devices",
    "core/options/resolved_options.cpp": "auto_select_gpus asks NVML who uses them",
    "core/profilers/pytorch_profiler.cpp": "LibTorch's profiler records CUDA's kernels by an activity of its own",
    "core/sweep/machine_share.cpp": "runs of a sweep divide CUDA_VISIBLE_DEVICES",
    "strategies/comm/device_backends.cpp": "NCCL serves CUDA's devices",
}
KNOW_CUDA = ("core/accelerators/", "strategies/comm/nccl_backend.cpp")

_BELOW_MIDDLE = {"core/base", "core/comm", "core/accelerators"}
_INTERFACES = _BELOW_MIDDLE | {f"core/{folder}" for folder in MIDDLE} | {"core/interchange", "core/interfaces"}
_OPTIONS = _INTERFACES | {"core/options"}
_CONNECTORS = _OPTIONS | {"core/connectors"}
_LOOPS = _CONNECTORS | {"core/loops"}
_TRAINER = _LOOPS | {"core/export", "core/trainer"}
_CLI = _TRAINER | {"core/models", "core/planning", "core/sweep", "core/cli"}

# What the files of a layer may include, besides their own layer.
ALLOWED = {
    "core/base": set(),
    "core/comm": {"core/base"},
    "core/accelerators": {"core/base"},
    **{f"core/{folder}": _BELOW_MIDDLE for folder in MIDDLE},
    "core/interchange": _BELOW_MIDDLE | {"core/checkpoint"},
    "core/interfaces": _INTERFACES,
    "core/profilers": _INTERFACES,
    "core/options": _INTERFACES,
    "core/connectors": _OPTIONS,
    "core/loops": _CONNECTORS,
    "core/export": _INTERFACES,
    "core/models": _INTERFACES,
    "core/trainer": _LOOPS | {"core/export"},
    "core/engine": _TRAINER,
    "core/planning": _TRAINER,
    "core/sweep": _OPTIONS,
    "core/cli": _TRAINER | {"core/models", "core/planning", "core/sweep"},
    "core/builtins": _TRAINER | {"core/models", "core/profilers", "strategies", "callbacks", "loggers"},
    "core/tools": _CLI | {"core/profilers", "core/builtins", "core/levin.h"},
    "core/python": _CLI,
    "core/c": _CLI | {"core/engine", "strategies"},
    "core/levin.h": _CLI | {"core/engine", "core/profilers", "core/builtins", "strategies", "callbacks", "loggers"},
    "strategies": _INTERFACES,
    "callbacks": _INTERFACES,
    "loggers": {"core/base"},
}
# Single headers beyond a layer's rule.
ALLOWED_FILES = {"loggers": {"core/interfaces/logger.h"}}

# What users include. The second one is in no library: it needs Python.
FOR_USERS = {"core/levin.h", "core/c/levin.h", "core/python/python_module.h"}

# Sources without a header, and headers without a source, are fine; a source whose header is named otherwise is not.
SOURCES_WITHOUT_HEADER = {"core/base/fmt_library.cpp", "core/c/calls.cpp"}

# Several sources behind one header: one a kind of team, of device, of file.
SHARED_HEADERS = {
    "core/data/tables/parquet_file.cpp": "core/data/tables/read_table.h",
    "strategies/comm/process_team.cpp": "strategies/comm/shared_memory_team.h",
    "strategies/comm/thread_team.cpp": "strategies/comm/shared_memory_team.h",
    "strategies/ddp/batch_norm_over_ranks_cpu.cpp": "strategies/ddp/batch_norm_over_ranks.h",
    "strategies/ddp/batch_norm_over_ranks_cuda.cpp": "strategies/ddp/batch_norm_over_ranks.h",
}

# File pairs that include each other, each with the reason why.
ALLOWED_CYCLES = {
    ("core/base/config", "core/base/yaml_reader"): "a Config is read from text by a parser whose library it hides",
    ("core/checkpoint/checkpoint_files", "core/checkpoint/tensor_in_files"): "the files give tensors that read them",
    ("core/data/data_loader", "core/data/loader_pass"): "one class: what its nested pass hides has files of its own",
    ("core/nn/move_to_device", "core/nn/weight_behaviour"): "behaviours mark a weight by other data, and move with it",
    ("core/nn/parallelize", "core/nn/tensor_plan"): "plans that modules were given are read with those of their types",
    ("core/optim/composed_schedulers", "core/optim/schedulers"): "one made of others makes them by name, and has one",
    ("core/export/onnx_converter", "core/export/onnx_operators"): "a table's entries work on the nodes that its user hands them",
    ("core/trainer/thread_rank", "core/trainer/trainer"): "a trainer starts further ranks, which have trainers of their own",
    ("strategies/sharded/sharded_build", "strategies/sharded/sharded_model"): "built by a model's options, for it",
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
    if included.startswith("levin/c/"):
        return "core/" + included.removeprefix("levin/")
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
    allowed_files = ALLOWED_FILES.get(layer, set())
    # Callbacks reach the trainer in their sources, so that no header depends on it.
    if layer == "callbacks" and is_source and target_layer in ("core/options", "core/trainer"):
        return []
    if target_layer == layer or target_layer in ALLOWED[layer] or target in allowed_files:
        return []
    return [f"{layer} must not include {target_layer} (<{included}>)"]


def check_user_code(path, included):
    """Examples and integration tests are users: they see the umbrella header, and that of modules for Python, only."""
    target = project_path(included)
    if target is None or target in FOR_USERS or included == "levin/build_info.h":
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


def unit_of(path):
    """What a file is a part of: a header and its sources are one unit, named as the header without its suffix."""
    return str(Path(SHARED_HEADERS.get(path, path)).with_suffix(""))


def inclusions(root):
    """Of each unit those that its files include."""
    included_by = {}
    for path in library_files(root):
        unit = unit_of(path)
        targets = {project_path(included) for _, _, included in includes_of(root / path)} - {None}
        included_by.setdefault(unit, set()).update({unit_of(target) for target in targets} - {unit})
    return included_by


def cycles(included_by):
    """The sets of two units or more in which each reaches every other one over inclusions."""

    def reached_from(unit):
        reached, left = set(), [unit]
        while left:
            for target in included_by.get(left.pop(), ()):
                if target not in reached:
                    reached.add(target)
                    left.append(target)
        return reached

    reached = {unit: reached_from(unit) for unit in included_by}
    found = {tuple(sorted(other for other in reached[unit] if unit in reached.get(other, ()))) for unit in included_by}
    return sorted(found - {()})


def check_cycles(root, allowed):
    """The violations, as words, of file pairs that include each other; `allowed`: the reason of each two that may."""
    included_by = inclusions(root)
    found = cycles(included_by)
    for cycle in found:
        if cycle in allowed:
            continue
        if len(cycle) == 2:
            yield f"{cycle[0]} and {cycle[1]} include each other without a reason in ALLOWED_CYCLES"
        else:
            steps = [f"{unit} -> {', '.join(sorted(included_by[unit] & set(cycle)))}" for unit in cycle]
            yield f"{len(cycle)} file pairs include each other in a circle: {'; '.join(steps)}"
    for pair, reason in allowed.items():
        if len(pair) != 2 or list(pair) != sorted(pair) or not reason:
            yield f"ALLOWED_CYCLES has two units in order with a reason each; got {pair}: {reason!r}"
        elif pair not in found:
            yield f"ALLOWED_CYCLES names {pair[0]} and {pair[1]}, which do not include each other"


def library_files(root):
    """The paths of the library's files, relative to the root."""
    for folder in SOURCE_FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".h", ".cpp"):
                yield str(file.relative_to(root))


def check_device_kinds(root, path):
    """The violations of a file of the library that knows CUDA."""
    if path.startswith(KNOW_CUDA):
        return
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        code = line.split("//")[0]
        if CUDA.search(code) or (CUDA_BY_NAME.search(code) and path not in MAY_NAME_CUDA):
            yield f"{path}:{number}: only core/accelerators knows CUDA; ask accelerator_of(device)"


def violations(root):
    for path in library_files(root):
        yield from check_device_kinds(root, path)
        for number, style, included in includes_of(root / path):
            for words in check_include(path, style, included):
                yield f"{path}:{number}: {words}"
        if path.endswith(".cpp"):
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
    found = [*violations(root), *check_cycles(root, ALLOWED_CYCLES)]
    print("\n".join(found) if found else "include direction: no violation")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
