#!/usr/bin/env python3
"""The example program without any launcher, told its ranks by variables alone."""

import contextlib
import socket
import sys

from support import Training, expect_contains, expect_equal, finish, free_ports, main, still_runs, wait_until


def two_ranks(workspace):
    """Two processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as on two hosts with one device each."""
    training = Training(workspace)
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    words = training.words("plain", devices=1, num_nodes=2)
    ranks = [workspace.start(f"rank{rank}", words, {**meeting, "RANK": str(rank)}) for rank in (0, 1)]
    for rank in ranks:
        finish(rank)
    expect_contains(ranks[0].log.read_text(errors="replace"), "plain variables", "what the program wrote")
    workspace.run("alone", training.words("alone", devices=2))
    expect_equal(training.weights("plain"), training.weights("alone"), "weights")


def appended_local_rank(workspace):
    """As launchers before torchrun did it: --local-rank=N is appended to the command line."""
    training = Training(workspace)
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    ranks = [workspace.start(f"rank{rank}", training.words("launch", devices=2, more=[f"--local-rank={rank}"]),
                             {**meeting, "RANK": str(rank)}) for rank in (0, 1)]
    for rank in ranks:
        finish(rank)
    workspace.run("alone", training.words("alone", devices=2))
    expect_equal(training.weights("launch"), training.weights("alone"), "weights")


def secret(workspace):
    """Ranks that have a secret meet in spite of a stranger at their port, and one that has another does not."""
    training = Training(workspace)
    port = free_ports(1)[0]
    file = workspace.folder / "secret"
    file.touch(mode=0o600)
    file.write_text("what only the ranks of this job know\n")
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
               "LEVIN_JOB_SECRET_FILE": str(file)}
    words = training.words("plain", devices=1, num_nodes=2)
    first = workspace.start("rank0", words, {**meeting, "RANK": "0"})

    def stranger():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"x" * 64)
            heard = b""
            while chunk := connection.recv(1000):
                heard += chunk
            return heard
        return b""

    heard = wait_until(stranger, "rank 0 serves", 60, still_runs(first))
    expect_contains(heard.decode(errors="replace"), "the proof of the secret is wrong", "what a stranger hears")
    other = workspace.start("other", words, {**meeting, "RANK": "1", "LEVIN_JOB_SECRET": "what somebody else knows"})
    if other.wait(60) == 0:
        raise AssertionError("a rank with another secret ended well")
    expect_contains(other.log.read_text(errors="replace"), "has another secret than this process", "what it wrote")
    finish(workspace.start("rank1", words, {**meeting, "RANK": "1"}))
    finish(first)
    expect_contains(first.log.read_text(errors="replace"), "was turned away", "what rank 0 wrote")


def missing_address(workspace):
    """Without MASTER_ADDR the program ends at once and names the variable."""
    training = Training(workspace)
    process = workspace.start("rank0", training.words("plain", devices=1, num_nodes=2),
                              {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"})
    if process.wait(60) == 0:
        raise AssertionError("the program ended well")
    expect_contains(process.log.read_text(errors="replace"), "MASTER_ADDR is not set", "what the program wrote")


if __name__ == "__main__":
    sys.exit(main({"two_ranks": two_ranks, "appended_local_rank": appended_local_rank,
                   "secret": secret, "missing_address": missing_address}))
