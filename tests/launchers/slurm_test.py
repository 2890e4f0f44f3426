#!/usr/bin/env python3
"""The example program under SLURM's srun, on a cluster that runs on this machine."""

import sys

from slurm_cluster import NODES, SlurmCluster
from support import Training, expect_contains, expect_equal, main

BATCH_SCRIPT = """\
#!/bin/sh
#SBATCH --ntasks=2
#SBATCH --nodes=1
#SBATCH --output={output}
srun {words}
"""


def srun(workspace):
    """srun's ranks compute what those that Levin starts itself compute."""
    cluster = SlurmCluster(workspace)
    training = Training(workspace)
    output = cluster.run("srun", ["srun", "--ntasks=2", "--nodes=1", *training.words("srun", devices=2)])
    expect_contains(output, "SLURM", "what the program wrote")
    workspace.run("alone", training.words("alone", devices=2))
    expect_equal(training.weights("srun"), training.weights("alone"), "weights")


def batch_script(workspace):
    """A batch script runs the program twice: as it is, when Levin starts the ranks, and with srun."""
    cluster = SlurmCluster(workspace)
    training = Training(workspace)
    script, output = workspace.folder / "job.sh", workspace.folder / "job.out"
    script.write_text(BATCH_SCRIPT.format(output=output, words=" ".join(training.words("srun", devices=2))) +
                      " ".join(training.words("alone", devices=2)) + "\n")
    try:
        cluster.run("sbatch", ["sbatch", "--wait", script])
    finally:
        if output.exists():
            print(output.read_text(errors="replace"))
    expect_contains(output.read_text(errors="replace"), "SLURM", "what the job wrote")
    expect_equal(training.weights("srun"), training.weights("alone"), "weights")


def two_nodes(workspace):
    """Two nodes with one task each. Both are this machine, whose name has no address in the network of a cluster."""
    cluster = SlurmCluster(workspace)
    training = Training(workspace)
    cluster.environment["MASTER_ADDR"] = "127.0.0.1"
    output = cluster.run("srun", ["srun", "--ntasks=2", f"--nodelist={','.join(NODES)}", "--ntasks-per-node=1",
                                  "--export=ALL", *training.words("srun", devices=1, num_nodes=2)])
    expect_contains(output, "SLURM", "what the program wrote")
    workspace.run("alone", training.words("alone", devices=2))
    expect_equal(training.weights("srun"), training.weights("alone"), "weights")


if __name__ == "__main__":
    sys.exit(main({"srun": srun, "batch_script": batch_script, "two_nodes": two_nodes}))
