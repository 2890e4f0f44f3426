#!/usr/bin/env python3
"""The study of examples/resnet: its scripts train on every number of devices and make the page, as jobs of a SLURM
cluster that runs on this machine, and without one."""

import csv
import os
import random
import sys
from pathlib import Path

from slurm_cluster import SlurmCluster
from support import SOURCE, Skip, expect_contains, expect_equal, main, write_tiny_fashion


def write_tiny_cifar10(folder):
    """Sixty images of noise in the files of CIFAR-10's binary version, and eight for tests."""
    folder.mkdir()
    noise = random.Random(7)
    for name, count in [(f"data_batch_{number}.bin", 12) for number in range(1, 6)] + [("test_batch.bin", 8)]:
        (folder / name).write_bytes(b"".join(bytes([image % 10]) + noise.randbytes(3072) for image in range(count)))


class Study:
    """One of the scripts, on a tiny data set in the workspace, with one and two devices."""

    def __init__(self, workspace, script, data="fashion_mnist_enlarged"):
        self.build = Path(os.environ.get("LEVIN_BINARY_DIR", SOURCE / "build"))
        for program in ("resnet", "levin-report"):
            if not (self.build / "bin" / program).exists():
                raise Skip(f"there is no {self.build}/bin/{program}; hint: build the examples and tools")
        self.data = data
        cifar10 = workspace.folder / "none"
        more = []
        if data == "cifar10":
            cifar10 = workspace.folder / "data"
            write_tiny_cifar10(cifar10)
        else:
            write_tiny_fashion(workspace.folder / "data", 60, 8)
            more = [f"--data.root={workspace.folder / 'data'}"]
        self.results = workspace.folder / "results"
        # Where the script runs there is examples/resnet, as in the root of the tree.
        (workspace.folder / "examples").symlink_to(SOURCE / "examples")
        self.words = [SOURCE / "examples/resnet" / script, "--config", "examples/resnet/tiny.yaml", *more,
                      "--data.val_size=4", "--trainer.limit_train_batches=3", "--trainer.max_epochs=2"]
        self.environment = {"DEVICES": "1 2", "MAX_BATCH": "8", "CIFAR10": str(cifar10), "RESULTS": str(self.results),
                            "BUILD": str(self.build)}

    def check(self, model):
        """Both runs are there, with the batch that was found and their times, and the page compares them."""
        expect_contains((self.results / "tune.txt").read_text(), "--data.global_batch_size=8", "what tune wrote")
        for devices in (1, 2):
            run = self.results / str(devices) / "version_0"
            config = (run / "config.yaml").read_text()
            for part in (model, self.data):
                expect_contains(config, part, "the configuration")
            with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if row["throughput/epoch_seconds"]]
            expect_equal(len(rows), 1, "epochs with a time")
            expect_equal(float(rows[0]["throughput/devices"]), float(devices), "devices")
            expect_equal(float(rows[0]["throughput/epoch_samples"]), 24.0, "images of an epoch")
            expect_equal("throughput/speedup" in rows[0], devices == 2, "whether there is a speed-up")
        page = (self.results / "report.html").read_text()
        expect_contains(page, f"{model} on {self.data}", "the page")


def job(workspace, script, model):
    study = Study(workspace, script)
    cluster = SlurmCluster(workspace)
    output = workspace.folder / "job.out"
    cluster.environment.update(study.environment)
    try:
        cluster.run("sbatch", ["sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2", f"--output={output}",
                               *study.words])
    finally:
        if output.exists():
            print(output.read_text(errors="replace"))
    expect_contains(output.read_text(errors="replace"), "SLURM", "what the job wrote")
    study.check(model)


def resnet50(workspace):
    job(workspace, "ResNet50.sh", "resnet50v2")


def resnet152(workspace):
    job(workspace, "ResNet152V2.sh", "resnet152v2")


def alone(workspace):
    """Without SLURM Levin starts the ranks. Here CIFAR-10 is where CIFAR10 says."""
    study = Study(workspace, "ResNet50.sh", "cifar10")
    workspace.run("study", study.words, study.environment)
    study.check("resnet50v2")


if __name__ == "__main__":
    sys.exit(main({"resnet50": resnet50, "resnet152": resnet152, "alone": alone}))
