#!/usr/bin/env python3
"""The example program under Horovod's horovodrun."""

import shutil
import sys

from support import Skip, Training, expect_contains, expect_equal, main


def one_host(workspace):
    """horovodrun's ranks compute what those that Levin starts itself compute, under its strategy too."""
    if not shutil.which("horovodrun"):
        raise Skip("there is no horovodrun; docs/launchers.md says why")
    words = ["horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"]
    training = Training(workspace)
    output = workspace.run("horovodrun", [*words, *training.words("horovodrun", devices=2)])
    expect_contains(output, "2 ranks, started by Horovod", "what the program wrote")
    workspace.run("alone", training.words("alone", devices=2))
    expect_equal(training.weights("horovodrun"), training.weights("alone"), "weights")
    strategy = ["--trainer.strategy=horovod"]
    workspace.run("strategy", [*words, *training.words("strategy", devices=2, more=strategy)])
    workspace.run("strategy_alone", training.words("strategy_alone", devices=2, more=strategy))
    expect_equal(training.weights("strategy"), training.weights("strategy_alone"), "weights under the strategy")


if __name__ == "__main__":
    sys.exit(main({"one_host": one_host}))
