#!/usr/bin/env python3
"""The example program under Open MPI's mpirun."""

import os
import sys

from support import Training, expect_contains, expect_equal, find_program, main


def mpirun():
    """The words that start two ranks on this host, as whatever user the test runs."""
    words = [find_program("mpirun"), "--oversubscribe", "-n", "2"]
    return [*words, "--allow-run-as-root"] if os.geteuid() == 0 else words


def one_host(workspace):
    """mpirun's ranks compute what those that Levin starts itself compute."""
    words = mpirun()
    training = Training(workspace)
    output = workspace.run("mpirun", [*words, *training.words("mpirun", devices=2)])
    expect_contains(output, "Open MPI", "what the program wrote")
    workspace.run("alone", training.words("alone", devices=2))
    expect_equal(training.weights("mpirun"), training.weights("alone"), "weights")


if __name__ == "__main__":
    sys.exit(main({"one_host": one_host}))
