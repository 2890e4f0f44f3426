#!/usr/bin/env python3
"""The example program as the ranks that scripts/levin-dask starts on workers of a real Dask cluster."""

import contextlib
import os
import signal
import sys
import time

from dask_cluster import WORKERS, DaskCluster
from support import SOURCE, Training, expect_contains, expect_equal, finish, main, still_runs, until_resumed, wait_until

CHECKPOINTS = "--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 4, save_last: true}}]"
# Trains once the ranks of both runs are there.
MEET = 'touch "$0/$1-$RANK"; until [ "$(ls "$0" | wc -l)" -ge 4 ]; do sleep 0.1; done; shift; exec "$@"'


def expect_same_checkpoints(workspace, training, root, expected):
    """levin-checkpoint finds weights, optimizer and counters equal: only paths and times are others."""
    tool = training.program.parent / "levin-checkpoint"
    last = [training.versions(each)[-1] / "checkpoints/last" for each in (root, expected)]
    process = workspace.start(f"diff-{root}", [tool, "diff", *last])
    process.wait(60)
    *differences, summary = process.log.read_text(errors="replace").splitlines()
    expect_contains(summary, "same: 18 tensors", "what levin-checkpoint says")
    for line in differences:
        if not line.startswith(("callbacks/", "config/", "loops/elapsed", "loops/seconds_since_validation")):
            raise AssertionError(f"{root} and {expected} differ: {line}")
    expect_equal(training.weights(root), training.weights(expected), "weights")


def two_runs(workspace):
    """Two runs of two ranks overlap on four workers, and compute what ranks that Levin starts itself compute."""
    training = Training(workspace)
    workspace.run("alone", training.words("alone", devices=2))
    cluster = DaskCluster(workspace)
    met = workspace.folder / "met"
    met.mkdir()
    runs = [workspace.start(name, cluster.words(2, ["sh", "-c", MEET, met, name, *training.words(name, devices=2)]))
            for name in ("first", "second")]
    for run in runs:
        finish(run)
        expect_contains(run.log.read_text(errors="replace"), "torchrun", "what the program wrote")
    for name in ("first", "second"):
        expect_same_checkpoints(workspace, training, name, "alone")
    tasks = [task for task in cluster.record() if "-rank-" in task[0]]
    expect_equal(len(tasks), 4, "number of ranks in Dask's record")
    expect_equal(len({worker for _, worker, _, _ in tasks}), 4, "number of workers that ran them")
    for key, _, start, stop in tasks:
        for other, _, begin, end in tasks:
            if key.split("-rank-")[0] == other.split("-rank-")[0] and not (start < end and begin < stop):
                raise AssertionError(f"{key} and {other}, ranks of one run, did not overlap")
    if not max(start for _, _, start, _ in tasks) < min(stop for _, _, _, stop in tasks):
        raise AssertionError("the two runs did not overlap")


def find_rank(workspace, training, rank):
    """The process of a rank and the variables it was given, or nothing."""
    for process, variables in workspace.descendants().items():
        try:
            program = os.readlink(f"/proc/{process}/exe")
        except OSError:
            continue
        if program == os.path.realpath(training.program) and variables.get("RANK") == str(rank):
            return process
    return None


def parent_of(process):
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def killed_worker(workspace):
    """The worker of rank 1 is killed: the run goes on from its checkpoint on another, to the weights of one that was
    not disturbed."""
    training = Training(workspace, images=1000)
    more = [CHECKPOINTS, "--trainer.max_epochs=8"]
    workspace.run("undisturbed", training.words("undisturbed", devices=2, more=more))
    cluster = DaskCluster(workspace)
    lost = []

    def attempt(root):
        process = workspace.start(root, cluster.words(2, training.words(root, devices=2, more=more)))
        wait_until(lambda: training.global_step(root) > 0, "there is a checkpoint", 100, still_runs(process))
        with contextlib.suppress(OSError, StopIteration):  # the rank has ended
            if rank := find_rank(workspace, training, rank=1):
                parent = parent_of(rank)
                name = next(name for name, worker in cluster.workers.items() if worker.pid == parent)
                os.kill(parent, signal.SIGKILL)
                lost.append(name)
        finish(process)

    disturbed = until_resumed(training, attempt)
    expect_contains((workspace.folder / f"{disturbed}.log").read_text(errors="replace"), f"worker {lost[-1]} was lost",
                    "what the dispatcher wrote")
    expect_same_checkpoints(workspace, training, disturbed, "undisturbed")


def interrupted(workspace):
    """Ctrl-C at the dispatcher ends the ranks, which save a checkpoint; a dispatcher that is killed takes them along."""
    training = Training(workspace, images=1000)
    cluster = DaskCluster(workspace)
    for root, number in (("interrupted", signal.SIGINT), ("killed", signal.SIGKILL)):
        process = workspace.start(root, cluster.words(2, training.words(
            root, devices=2, more=[CHECKPOINTS, "--trainer.max_epochs=1000"])))
        wait_until(lambda each=root: training.global_step(each) > 0, "there is a checkpoint", 100, still_runs(process))
        process.send_signal(number)
        expect_equal(process.wait(60), 130 if number == signal.SIGINT else -signal.SIGKILL, "status")
        wait_until(lambda: not any(find_rank(workspace, training, rank) for rank in (0, 1)), "the ranks end", 100)
    # Which rank's signal the ranks agree on is a matter of time.
    expect_contains((workspace.folder / "interrupted.log").read_text(errors="replace"),
                    "ending after the present step and saving", "what the ranks wrote")


def failures(workspace):
    """A program's status is returned; missing workers, a missing program and a missing scheduler are one line each."""
    cluster = DaskCluster(workspace)

    def run(ranks, program):
        process = workspace.start("failing", cluster.words(ranks, program))
        before = process.log.stat().st_size
        status = process.wait(100)
        return status, process.log.read_text(errors="replace")[before:]

    status, output = run(2, ["sh", "-c", "echo rank=$RANK of $WORLD_SIZE local=$LOCAL_RANK; exit $((RANK * 3))"])
    expect_equal(status, 3, "status")
    expect_contains(output, "rank=1 of 2 local=1", "output")
    status, output = run(1, [SOURCE / "build/no_such_program", "fit"])
    expect_equal((status, output.count("\n")), (1, 1), "status and lines")
    if not any(f"[dask] worker {name} (tcp://127.0.0.1:" in output for name in WORKERS):
        raise AssertionError(f"no worker is named in {output}")
    expect_contains(output, f"has no program {SOURCE}/build/no_such_program", "output")
    status, output = run(9, ["true"])
    expect_equal((status, output.count("\n")), (1, 1), "status and lines")
    expect_contains(output, "9 ranks on 1 host(s)", "output")
    cluster.address = "tcp://127.0.0.1:1"
    status, output = run(1, ["true"])
    expect_equal((status, output.count("\n")), (1, 1), "status and lines")
    expect_contains(output, "[dask] no Dask scheduler answers at tcp://127.0.0.1:1", "output")


def warm_start(workspace):
    """Not among the tests, but the measurement of docs/performance.md: from the command to the program's first line."""
    cluster = DaskCluster(workspace)
    for _ in range(6):
        begin = time.time()
        output = workspace.run("start", cluster.words(2, ["date", "+started=%s.%N"]))
        start = max(float(line.partition("=")[2]) for line in output.splitlines()[-2:] if line.startswith("started="))
        print(f"{start - begin:.2f} s; load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    sys.exit(main({"two_runs": two_runs, "killed_worker": killed_worker, "interrupted": interrupted,
                   "failures": failures, "warm_start": warm_start}))
