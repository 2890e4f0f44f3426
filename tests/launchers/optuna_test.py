#!/usr/bin/env python3
"""Optuna drives the command line of the example program."""

import os
import subprocess
import sys

from support import SOURCE, Skip, Training, expect_contains, expect_equal, main


def study(workspace):
    """Ten trials, each a run in a folder of its own; started again, the study is done already."""
    python = os.environ.get("LEVIN_TEST_PYTHON", str(SOURCE / ".deps/test-venv/bin/python"))
    found = subprocess.run([python, "-c", "import optuna"], capture_output=True, check=False) if os.path.exists(python) else None
    if found is None or found.returncode != 0:
        raise Skip("there is no optuna; hint: scripts/bootstrap")
    training = Training(workspace, images=80)
    words = [word for word in training.words("unused", devices=1) if word != "fit" and "default_root_dir" not in word]
    words += ["--trainer.strategy=auto", "--trainer.logger=csv", "--trainer.max_epochs=2", "--data.num_workers=0"]
    script = SOURCE / "examples/fashion_mnist/optuna_study.py"
    output = workspace.run("first", [python, script, *words])
    expect_contains(output, "of 10 trials: {'model.lr': ", "what the study wrote")
    runs = sorted(path.name for path in (workspace.folder / "optuna_runs").iterdir())
    expect_equal(runs, sorted(f"trial_{number}" for number in range(10)), "the runs")
    again = workspace.run("second", [python, script, *words])
    expect_equal(again.splitlines()[-1], output.splitlines()[-1], "what the study found")


if __name__ == "__main__":
    sys.exit(main({"study": study}))
