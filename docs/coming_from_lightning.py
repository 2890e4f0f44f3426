#!/usr/bin/env python3
"""Writes docs/coming-from-lightning.md from Lightning's names and ours, to standard output: coming_from_lightning.py [ROOT].

--installed compares docs/lightning_names.txt with the Lightning that this Python has, and writes nothing.
"""

import re
import sys
from pathlib import Path

HEAD = """# Coming from PyTorch Lightning

<!-- Written by docs/coming_from_lightning.py: change that, not this page. -->

Most of what you know has the same name and does the same. This page has every public name of Lightning's `Trainer`, `LightningModule`,
`Callback`, callbacks, loggers and strategies; a test compares it with both sides.

## What is different, and why

- **A batch is a list of named tensors** (`batch["x"]`), instead of any nest of Python objects: it can be divided over ranks, copied and
  checked without code of yours.
- **A checkpoint is a folder** of safetensors and a manifest, written atomically: any program reads the weights, and a damaged
  one is never used. Lightning's `.ckpt` is read and written too ([interchange.md](interchange.md)).
- **Resuming is exact.** Position in the data, random numbers, gradients of an accumulation window and logged sums are in the
  checkpoint: a run stopped at any batch ends with the bits of one that was not.
- **A step follows the mean over all examples of its batches and ranks**, or over what `StepOutput`'s `weight` counts
  ([modules.md](modules.md#how-losses-are-weighed)); Lightning averages the means of batches, which `weigh_losses: false` does too. The
  last accumulation window of an epoch holds what is left, and takes its step.
- **`log` reduces by mean, sum, min or max**, as there. A reduction of your own is a metric object, as there: `StackedValues` takes a
  function. There is no `sync_dist_group`: only rank 0 logs, so that of several groups it would show its own; reduce over a part of the
  ranks by hand, with `all_gather`, and log the result.
- **Logging reads nothing from the device** until every `log_every_n_steps`; `log` in `training_step` costs no synchronisation.
- **Options are typed and checked before anything starts**: a misspelled one is an error with its place and the nearest name.
- **`optimizer` and `scheduler` may be named in YAML** without a command line class of yours ([modules.md](modules.md#optimizers-and-schedulers)).
- **Strategies**: `ddp` and `sharded` can run their ranks as threads of one process (`ddp_threads`), and a pipeline is a strategy as any other.

`trainer: {max_epochs: 3, devices: 2, strategy: ddp}` in YAML is what `Trainer(max_epochs=3, devices=2, strategy="ddp")` is there; in C++ it is
`levin::Trainer trainer({.max_epochs = 3, .devices = 2, .strategy = "ddp"})`.
"""

# What has another name here, or none. A text that begins with "-" says why there is nothing.
RENAMED = {
    "options of Trainer": {
        "enable_autolog_hparams": "always: hyper-parameters go to every logger",
        "model_registry": "- Lightning's own service",
        "plugins": "`strategy`, `precision` and `accelerator` name what plugins are for; your own are registered by name "
        "([extending.md](extending.md))",
    },
    "members of Trainer": {
        "accelerator": "`levin::Accelerator`, by `device()`",
        "checkpoint_callbacks": "`callbacks()`",
        "ckpt_path": "the last argument of `fit`, `validate`, `test` and `predict`",
        "device_ids": "`devices()`",
        "distributed_sampler_kwargs": "- data are divided by the loader, not by a sampler",
        "early_stopping_callback": "`callbacks()`",
        "early_stopping_callbacks": "`callbacks()`",
        "enable_validation": "`num_evaluation_batches()`",
        "estimated_stepping_batches": "`estimated_steps()`",
        "evaluating": "`running_stage()`",
        "init_module": "`configure_model` of the module",
        "is_last_batch": "`epoch_complete()`",
        "lightning_module": "`module()`",
        "local_rank": "`device()`",
        "log_dir": "`run_directory()`",
        "logger": "`loggers()`",
        "lr_scheduler_configs": "`schedulers()` of the module",
        "max_steps": "`options()`",
        "min_epochs": "`options()`",
        "min_steps": "`options()`",
        "model": "`module()`",
        "node_rank": "- `global_rank()` and `devices()` say it",
        "num_devices": "`devices()`",
        "num_nodes": "`options()`",
        "num_predict_batches": "`num_evaluation_batches()`",
        "num_sanity_val_batches": "`num_evaluation_batches()`",
        "num_test_batches": "`num_evaluation_batches()`",
        "num_val_batches": "`num_evaluation_batches()`",
        "precision_plugin": "`precision()`",
        "predict_dataloaders": "- the loaders that were given",
        "predicting": "`running_stage()`",
        "print": "`levin::log::rank_zero_info`",
        "progress_bar_callback": "`callbacks()`",
        "received_sigterm": "`interrupt_signal()`",
        "scaler": "`precision()`",
        "test_dataloaders": "- the loaders that were given",
        "testing": "`running_stage()`",
        "training": "`running_stage()`",
        "val_dataloaders": "- the loaders that were given",
        "validating": "`running_stage()`",
    },
    "members of LightningModule": {
        "configure_sharded_model": "`configure_model`",
        "current_epoch": "`trainer().current_epoch()`",
        "device_mesh": "`trainer().mesh()`: sizes, coordinates and groups by dimension",
        "example_input_array": "the example that `export_model` takes",
        "fabric": "`levin::Engine` ([engine.md](engine.md)), for loops of your own",
        "forward": "a member of your class, as in LibTorch",
        "global_rank": "`trainer().global_rank()`",
        "global_step": "`trainer().global_step()`",
        "load_from_checkpoint": "`levin::load_from_checkpoint<M>(path)`",
        "local_rank": "`device()`",
        "logger": "`trainer().loggers()`",
        "loggers": "`trainer().loggers()`",
        "lr_schedulers": "`schedulers()`, `scheduler(index)`",
        "on_gpu": "`device()`",
        "on_validation_model_zero_grad": "- gradients are freed at the start of a window",
        "print": "`levin::log::rank_zero_info`",
        "strict_loading": "`strict` of `init_from` and of `load_from_checkpoint`",
        "to_onnx": "`trainer().export_model` to a file `.onnx`",
        "to_tensorrt": "- from the ONNX file",
        "to_torchscript": "`trainer().export_model` to a file `.pt`",
        "toggled_optimizer": "`toggle_optimizer`, whose result ends it",
    },
    "members of Callback": {},
    "callbacks": {
        "BaseFinetuning": "`BackboneFinetuning`, or a callback of your own",
        "BasePredictionWriter": "`PredictionWriter`",
        "Checkpoint": "`Checkpointer`",
        "EMAWeightAveraging": "`WeightAveraging`",
        "OnExceptionCheckpoint": "`ModelCheckpoint` with `save_on_exception`",
        "RichModelSummary": "`ModelSummary`",
        "RichProgressBar": "`ProgressBar`",
        "TQDMProgressBar": "`ProgressBar`",
    },
    "loggers": {
        "CSVLogger": "`CsvLogger`",
        "CometLogger": "- a service without a kept C++ client",
        "LitLogger": "- Lightning's own service",
        "MLFlowLogger": "`MlflowLogger`",
    },
    "strategies": {
        "DDPStrategy": "`ddp`, `ddp_spawn`, `ddp_threads`",
        "DeepSpeedStrategy": "`sharded` with `stage` 1 to 3 and `offload`",
        "FSDPStrategy": "`sharded`",
        "ModelParallelStrategy": "the sizes of a [mesh](parallelism.md): `{replicate: 2, shard: auto}`",
        "SingleDeviceStrategy": "`single_device`",
    },
}
HEADERS = {
    "members of Trainer": ["core/trainer/trainer.h"],
    "members of LightningModule": ["core/interfaces/module.h"],
    "members of Callback": ["core/interfaces/callback.h", "core/base/state.h"],
    "callbacks": ["callbacks/*.h", "core/interfaces/callback.h"],
    "loggers": ["loggers/*.h"],
}


def lightning_names(root):
    sections, section = {}, None
    for line in (root / "docs/lightning_names.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            section.extend(line.split())
    return sections


def our_names(root, section):
    if section == "options of Trainer":
        table = (root / "docs/configuration.md").read_text(encoding="utf-8").split("\n## ")
        trainer = next(part for part in table if part.startswith("`trainer`") or part.startswith("trainer"))
        return set(re.findall(r"^\| `(\w+)` \|", trainer, re.MULTILINE))
    names = set()
    for pattern in HEADERS.get(section, []):
        for header in root.glob(pattern):
            text = re.sub(r"//.*", "", header.read_text(encoding="utf-8"))
            names |= set(re.findall(r"\b(\w+)\s*\(", text)) | set(re.findall(r"\bclass (\w+)", text))
            names |= set(re.findall(r"\b(\w+) = (?:true|false);", text))
    return names


def refuse_unknown_words(root):
    """Each name that a text gives as ours must be one."""
    sources = [*root.glob("core/**/*.h"), *root.glob("callbacks/*.h"), *root.glob("loggers/*.h")]
    known = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in sources)))
    known |= set(re.findall(r"\w+", (root / "docs/configuration.md").read_text(encoding="utf-8"))) | {"onnx", "pt", "requires_grad_"}
    for section, renamed in RENAMED.items():
        for name, text in renamed.items():
            for word in re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", text))):
                if word not in known:
                    raise SystemExit(f"docs/coming_from_lightning.py: {section}: {name}: Levin has no {word}")


def tables(root):
    refuse_unknown_words(root)
    parts = []
    for section, names in lightning_names(root).items():
        here, renamed = our_names(root, section), RENAMED[section]
        unknown = sorted(set(names) - here - set(renamed))
        if unknown:
            raise SystemExit(f"docs/coming_from_lightning.py: {section}: no word about {', '.join(unknown)}")
        for name in sorted(set(renamed) - set(names)):
            raise SystemExit(f"docs/coming_from_lightning.py: {section}: Lightning has no {name}")
        parts.append(f"\n## {section[0].upper()}{section[1:]}\n")
        same = [f"`{name}`" for name in sorted(names) if name in here and name not in renamed]
        if same:
            parts.append("The same: " + ", ".join(same) + "." + ("\n" if renamed else ""))
        if renamed:
            parts.append("| Lightning | Levin |\n|---|---|")
            for name in sorted(renamed):
                text = renamed[name]
                parts.append(f"| `{name}` | {'none: ' + text[2:] if text.startswith('-') else text} |")
    return "\n".join(parts)


def page(root):
    return HEAD + tables(root).rstrip("\n") + "\n"


def installed():
    """Lightning's names as it has them now, by section."""
    import inspect

    import lightning.pytorch as pl
    from lightning.pytorch import callbacks, loggers, strategies
    from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

    def members(*classes):
        return {n for c in classes for n in vars(c) if re.fullmatch("[a-z][a-z_]*", n)}

    bases = {"Callback", "Logger", "Strategy", "ParallelStrategy"}
    return {
        "options of Trainer": set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"},
        "members of Trainer": members(pl.Trainer),
        "members of LightningModule": members(pl.LightningModule, ModelHooks, DataHooks, CheckpointHooks),
        "members of Callback": members(pl.Callback),
        "callbacks": set(callbacks.__all__),
        "loggers": set(loggers.__all__) - bases,
        "strategies": set(strategies.__all__) - bases,
    }


def compare_with_installed(root):
    saved, wrong = lightning_names(root), []
    for section, names in installed().items():
        wrong += [f"{section}: {name}" for name in sorted(names.symmetric_difference(saved[section]))]
    if wrong:
        raise SystemExit("docs/lightning_names.txt differs from the installed Lightning: " + ", ".join(wrong))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--installed"]
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if "--installed" in sys.argv:
        compare_with_installed(root)
    else:
        sys.stdout.write(page(root))
