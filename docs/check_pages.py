#!/usr/bin/env python3
"""Says what the pages for users lack or have wrong, compared with the headers: check_pages.py [ROOT].

- docs/modules.md: every member that a module or a callback may override, with what it takes and returns; every metric
  with its options in order; the fields of LogOptions, SchedulerConfig and OptimizerConfig, in order
- docs/trainer.md: every member of Trainer
- docs/data.md: every member of Batch and of Dataset; the fields of DataLoaderOptions, in order
- docs/configuration.md: options in the order in which code must name them
- README.md or CONTRIBUTING.md: every page
"""

import re
import sys
from pathlib import Path

import declarations

NOT_FOR_USERS = {"parts", "attach", "attached_runtime", "untouched_batches"}


def codes(page):
    """What stands between back-ticks in a page, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE))


def signatures(page):
    """{name: (what it returns, types of its parameters)} of the declarations in a page."""
    found = {}
    for code in codes(page):
        declared = re.fullmatch(r"(.+?)\s(\w+)\((.*)\)(?: const)?", code)
        if declared and not declared[1].startswith("return"):
            found[declared[2]] = (declared[1], declarations.types_of(declared[3]))
    return found


def rows(page, first_cell):
    """The first words between back-ticks of the rows of the table whose heading begins with `first_cell`."""
    lines = page.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |")), None)
    if start is None:
        return []
    names = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        names.append(re.search(r"`([^`]+)`", line.split("|")[1])[1])
    return names


def check_hooks(page, module, callback):
    shown = signatures(page)
    hooks = declarations.hooks_of(module, "Module")
    for name, hook in hooks.items():
        if name not in shown:
            yield f"docs/modules.md: the member {name} of Module is missing"
        elif shown[name] != hook:
            yield f"docs/modules.md: Module's {name} is shown as {shown[name]}; it is {hook}"
    for name, (returned, types) in declarations.hooks_of(callback, "Callback").items():
        front = types[:2] == ("Trainer&", "Module&")
        own = types[2:] if front else types
        if name not in shown:
            yield f"docs/modules.md: the member {name} of Callback is missing"
        elif name not in hooks and shown[name] != (returned, own):
            yield f"docs/modules.md: Callback's {name} is shown as {shown[name]}; it is {(returned, own)}"
        elif name in hooks and name not in ("on_save_checkpoint", "on_load_checkpoint") and hooks[name][1] != own:
            yield f"docs/modules.md: {name} takes {hooks[name][1]} of a module and {own} of a callback"


def check_methods(page_name, page, text, class_name):
    shown = set(re.findall(r"\w+", " ".join(codes(page))))
    for name in declarations.methods_of(text, class_name):
        if name not in shown | NOT_FOR_USERS:
            yield f"{page_name}: the member {name} of {class_name} is missing"


def check_fields(page_name, page, heading, text, struct):
    shown, fields = rows(page, heading), declarations.fields_of(text, struct)
    if shown != fields:
        yield f"{page_name}: the fields of {struct} are {shown}; they are {fields}"


def check_metrics(page, headers):
    """`headers`: the texts of those of core/metrics."""
    everything = "\n".join(headers)
    metrics = re.findall(r"class (\w+)(?: final)? : public (?:\w*Metric|ConfusionMatrix)\b", everything)
    table = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 5}
    for metric in metrics:
        if metric.endswith("Metric"):  # a base
            continue
        if metric not in table:
            yield f"docs/modules.md: the metric {metric} is missing"
            continue
        options = f"{metric}Options" if f"struct {metric}Options" in everything else None
        if metric == "Precision":
            options = "ClassScoreOptions"
        if options is None:
            continue
        fields = declarations.fields_of(everything, options)
        named = [code for code in re.findall(r"`([^`]+)`", table[metric].split("|")[2]) if code in fields]
        if named != fields:
            yield f"docs/modules.md: the options of {metric} are {named}; they are {fields}"


def check_order_of_options(page, headers):
    """Tables of configuration.md against the structs of the same fields: designated initialisers go by the structs."""
    structs = {}
    for text in headers:
        for struct in re.findall(r"^struct (\w*Options) ", text, re.MULTILINE):
            structs[struct] = declarations.fields_of(text, struct)
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0].strip("`")
        names = rows(section, "option")
        name = title.rpartition("::")[2].replace("_", "")
        for struct, fields in structs.items():
            if not re.fullmatch(f"{name}(Logger|Profiler|Precision|Strategy)?Options", struct, re.IGNORECASE):
                continue
            if set(names) <= set(fields) and names != [field for field in fields if field in names]:
                yield f"docs/configuration.md: the options of {title} are in another order than the fields of {struct}"


def check_listing(entries, pages):
    for page in pages:
        if f"docs/{page}" not in entries:
            yield f"README.md: docs/{page} is not listed, nor in CONTRIBUTING.md"


def problems(root):
    def text(path):
        return (root / path).read_text(encoding="utf-8")

    modules, trainer, data = text("docs/modules.md"), text("docs/trainer.md"), text("docs/data.md")
    yield from check_hooks(modules, text("core/interfaces/module.h"), text("core/interfaces/callback.h"))
    yield from check_methods("docs/modules.md", modules, text("core/interfaces/module.h"), "Module")
    yield from check_fields("docs/modules.md", modules, "option", text("core/metrics/log_options.h"), "LogOptions")
    for struct in ("OptimizerConfig", "SchedulerConfig"):
        yield from check_fields("docs/modules.md", modules, f"`{struct}`", text("core/optim/optimizer_config.h"), struct)
    yield from check_metrics(modules, [path.read_text(encoding="utf-8") for path in sorted((root / "core/metrics").glob("*.h"))])
    yield from check_methods("docs/trainer.md", trainer, text("core/trainer/trainer.h"), "Trainer")
    yield from check_methods("docs/data.md", data, text("core/data/batch.h"), "Batch")
    yield from check_methods("docs/data.md", data, text("core/data/dataset.h"), "Dataset")
    yield from check_methods("docs/data.md", data, text("core/data/data_module.h"), "DataModule")
    yield from check_fields("docs/data.md", data, "option", text("core/data/data_loader.h"), "DataLoaderOptions")
    for source in ("local_sgd", "static_scale"):
        yield from check_shown(text("docs/extending.md"), f"tests/conformance/{source}.h", text(f"tests/conformance/{source}.h"))
    headers = [path for folder in ("core", "callbacks", "loggers", "strategies") for path in sorted((root / folder).rglob("*.h"))]
    yield from check_order_of_options(text("docs/configuration.md"), [path.read_text(encoding="utf-8") for path in headers])
    yield from check_listing(text("README.md") + text("CONTRIBUTING.md"), sorted(path.name for path in (root / "docs").glob("*.md")))


def check_shown(extending, path, source):
    """The strategy and the precision that docs/extending.md shows are those that the conformance suite runs."""
    if source[source.index("struct "):] not in extending:
        yield f"docs/extending.md: the page does not show what is in {path}"


def main():
    found = list(problems(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
    print("\n".join(found) if found else "pages: as the headers have it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
