#!/usr/bin/env python3
"""The example program under SLURM's srun, on a cluster that runs on this machine."""

import csv
import re
import shlex
import sys

from slurm_cluster import NODES, SlurmCluster
from support import Training, expect_contains, expect_equal, main, still_runs, wait_until

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


REQUEUED_SCRIPT = """\
#!/bin/sh
#SBATCH --ntasks=2
#SBATCH --nodes=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={output}
exec srun {words}
"""


def requeue(workspace):
    """SIGUSR1, which SLURM sends before a job's time is up, ends a run that has SLURM start it again and goes on."""
    cluster = SlurmCluster(workspace)
    training = Training(workspace)
    more = ["--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 4, save_last: true}}]",
            "--trainer.max_epochs=100", "--ckpt=auto"]
    script, output = workspace.folder / "job.sh", workspace.folder / "job.out"
    script.write_text(REQUEUED_SCRIPT.format(
        output=output, words=shlex.join(training.words("requeued", devices=2, more=more))))
    cluster.run("sbatch", ["sbatch", script])

    def job_is(state):
        shown = cluster.run("scontrol", ["scontrol", "show", "job", "1", "--oneliner"])
        return re.findall(r"JobState=(\w+)", shown)[-1] == state

    try:
        wait_until(lambda: training.global_step("requeued") > 0, "there is a checkpoint", 60)
        cluster.run("scancel", ["scancel", "--signal=USR1", "1"])
        wait_until(lambda: job_is("PENDING"), "the job is in the queue", 60)
        # SLURM would wait two minutes. Credentials of the second in which the old job was killed are void.
        cluster.run("scontrol", ["scontrol", "update", "JobId=1", "StartTime=now+5"])
        wait_until(lambda: job_is("COMPLETED"), "the job has ended well", 100)
    finally:
        if output.exists():
            print(output.read_text(errors="replace"))
    expect_contains(output.read_text(errors="replace"), "SLURM has requeued the job", "what the job wrote")
    expect_equal(len(training.versions("requeued")), 2, "runs")
    workspace.run("alone", training.words("alone", devices=2, more=more))
    expect_equal(training.weights("requeued"), training.weights("alone"), "weights")


def sweep_words(training, executor, name):
    words = training.words("sweeps", devices=1, more=[
        "--trainer.strategy=auto", "--trainer.logger=csv", f"--sweep.name={name}", f"--sweep.executor={executor}",
        "--sweep.grid={model.lr: [0.01, 0.001, 100000000], data.val_size: [40]}", "--sweep.parallel=2"])
    return [words[0], "sweep", *words[2:]]


def sweep_results(training, name):
    """The rows of a sweep's table without times."""
    with open(training.root("sweeps") / "sweeps" / name / "sweep.csv", encoding="utf-8", newline="") as file:
        return [{column: cell for column, cell in row.items() if column != "seconds"} for row in csv.DictReader(file)]


def sweep(workspace):
    """The runs of a sweep as an array job give what they give here; the sweep is killed, and takes them over again."""
    cluster = SlurmCluster(workspace)
    training = Training(workspace)
    workspace.run("local", sweep_words(training, "local", "local"))

    folder = training.root("sweeps") / "sweeps" / "slurm"
    first = workspace.start("first", sweep_words(training, "slurm", "slurm"), cluster.environment)
    wait_until(lambda: (folder / "0000/slurm_job").exists() or (folder / "0000/exit_status").exists(),
               "the array job is submitted", 100, still_runs(first))
    first.kill()
    first.wait()
    output = cluster.run("second", sweep_words(training, "slurm", "slurm"))
    expect_contains(output, "best    000", "what the second start wrote")
    expect_equal("SLURM has" in output, False, "whether the second start submitted a job")
    expect_equal(sweep_results(training, "slurm"), sweep_results(training, "local"), "the table")
    expect_equal([row["status"] for row in sweep_results(training, "slurm")], ["finished"] * 3, "how runs ended")


if __name__ == "__main__":
    sys.exit(main({"srun": srun, "batch_script": batch_script, "two_nodes": two_nodes, "requeue": requeue,
                   "sweep": sweep}))
