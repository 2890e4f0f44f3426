#!/usr/bin/env python3
"""Looks for a learning rate and a width with Optuna (PyPI: optuna). Each trial is a run of the program, which is ended
early when it does worse than those before it.

    python optuna_study.py build/bin/fashion_mnist --config examples/fashion_mnist/mlp.yaml [--OPTION=VALUE ...]

Options after the program go to each of its runs. The study is kept in optuna_study.db: started again, it goes on."""

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna

TRIALS = 10
METRIC = "val_loss"


def values(run):
    """The metric at the end of each epoch so far: {epoch: value}."""
    path = run / "metrics.csv"
    if not path.exists():
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        return {int(row["epoch"]): float(row[METRIC]) for row in csv.DictReader(file) if row.get(METRIC)}


def objective(trial):
    run = Path("optuna_runs").resolve() / f"trial_{trial.number}"
    run.mkdir(parents=True, exist_ok=True)
    options = {"model.lr": trial.suggest_float("model.lr", 1e-4, 1e-1, log=True),
               "model.hidden": trial.suggest_categorical("model.hidden", [32, 64, 128]),
               "trainer.run_dir": run}
    words = [sys.argv[1], "fit", *sys.argv[2:], *(f"--{name}={value}" for name, value in options.items())]
    with open(run / "output.txt", "w", encoding="utf-8") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
    told = set()
    while process.poll() is None:
        for epoch, value in values(run).items():
            if epoch not in told:
                trial.report(value, epoch)
                told.add(epoch)
        if trial.should_prune():
            process.send_signal(signal.SIGTERM)  # It saves a checkpoint and ends.
            process.wait()
            raise optuna.TrialPruned
        time.sleep(0.2)
    if process.returncode != 0:
        raise RuntimeError(f"trial {trial.number} failed: {run}/output.txt")
    return values(run)[max(values(run))]


def main():
    study = optuna.create_study(study_name="fashion_mnist", storage="sqlite:///optuna_study.db", load_if_exists=True,
                                sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner())
    study.optimize(objective, n_trials=TRIALS - len(study.trials), catch=(RuntimeError,))
    print(f"best {METRIC} {study.best_value:.4g} of {len(study.trials)} trials: {study.best_params}")


if __name__ == "__main__":
    main()
