#!/usr/bin/env python3
"""The example program under torchrun: on one host, on two, restarted, and with hosts that come and go."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys

import network_hosts
from support import (Skip, Training, expect_contains, expect_equal, find_program, find_torchrun, finish, main,
                     still_runs, until_resumed, wait_until)

CHECKPOINTS = "--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 4, save_last: true}}]"
RESTARTABLE = ["--ckpt=auto", CHECKPOINTS]


def one_host(workspace):
    """torchrun's ranks compute what those that Levin starts itself compute."""
    training = Training(workspace)
    workspace.run("alone", training.words("alone", devices=2))
    output = workspace.run("torchrun", [find_torchrun(), "--no-python", "--standalone", "--nproc-per-node=2",
                                        *training.words("torchrun", devices=2)])
    expect_contains(output, "torchrun", "what the program wrote")
    expect_equal(training.weights("torchrun"), training.weights("alone"), "weights")


def secret(workspace):
    """Ranks that have a secret leave torchrun's store for one of their own, and compute the same."""
    training = Training(workspace)
    workspace.run("alone", training.words("alone", devices=2))
    workspace.run("torchrun", [find_torchrun(), "--no-python", "--standalone", "--nproc-per-node=2",
                               *training.words("torchrun", devices=2)],
                  {"LEVIN_JOB_SECRET": "what only the ranks of this job know"})
    expect_equal(training.weights("torchrun"), training.weights("alone"), "weights")


def disagreement(workspace):
    """The program asks for other ranks than torchrun started: each rank says both numbers, and nothing hangs."""
    training = Training(workspace)
    process = workspace.start("torchrun", [find_torchrun(), "--no-python", "--standalone", "--nproc-per-node=2",
                                           *training.words("torchrun", devices=2, num_nodes=2)])
    status = process.wait(120)
    if status == 0:
        raise AssertionError("torchrun ended well")
    output = process.log.read_text(errors="replace")
    expect_contains(output, "trainer.num_nodes x trainer.devices is 2 x 2 = 4 ranks, but torchrun started 2", "output")


# --- Two hosts ---


class Rendezvous:
    """What torchrun's agents meet through, served on the first of two hosts."""

    def __init__(self, workspace, backend, server):
        self._backend = backend
        self._server = server
        self._endpoint = f"{server.address}:29400"
        if backend == "etcd-v2":
            python = os.path.join(os.path.dirname(find_torchrun()), "python")
            if subprocess.run([python, "-c", "import etcd"], capture_output=True, check=False).returncode != 0:
                raise Skip("torchrun's etcd backend needs the Python package python-etcd; hint: scripts/bootstrap")
            self._endpoint = f"{server.address}:2379"
            url = f"http://{self._endpoint}"
            etcd = server.start(workspace, "etcd", [
                find_program("etcd"), "--enable-v2", "--data-dir", workspace.folder / "etcd",
                "--listen-client-urls", url, "--advertise-client-urls", url,
                "--listen-peer-urls", "http://127.0.0.1:2380"])
            wait_until(lambda: "ready to serve client requests" in etcd.log.read_text(errors="replace"),
                       "etcd serves", 60, still_runs(etcd))

    def agent(self, host, nodes="2", more=(), patience=100):
        """The words that start torchrun on a host, up to the program. A host that nothing is heard of for `patience`
        seconds is taken for lost."""
        settings = ["keep_alive_interval=1", f"keep_alive_max_attempt={patience}", "last_call_timeout=2"]
        if self._backend == "c10d":
            # torchrun knows the machine's name and addresses, not those of the namespace.
            settings.append(f"is_host={int(host is self._server)}")
        return [find_torchrun(), "--no-python", f"--nnodes={nodes}", "--nproc-per-node=1",
                f"--rdzv-backend={self._backend}", f"--rdzv-endpoint={self._endpoint}", "--rdzv-id=levin",
                f"--rdzv-conf={','.join(settings)}", f"--local-addr={host.address}", *more]


def two_hosts(workspace, backend):
    """Two hosts compute what two ranks of one host compute over the same sockets."""
    hosts = network_hosts.make_hosts(workspace)
    training = Training(workspace)
    rendezvous = Rendezvous(workspace, backend, hosts[0])
    words = training.words("hosts", devices=1, num_nodes=2)
    agents = [host.start(workspace, f"agent-{host.address}", [*rendezvous.agent(host), *words]) for host in hosts]
    for agent in agents:
        finish(agent)
    workspace.run("alone", training.words("alone", devices=2))
    # The ranks of one host add gradients in shared memory, those of two hosts in Gloo: with two summands the same sum.
    expect_equal(training.weights("hosts"), training.weights("alone"), "weights")


def two_hosts_ddp2(workspace):
    """Two replicas on each of two hosts compute what one process a host does, up to the order of sums."""
    hosts = network_hosts.make_hosts(workspace)
    training = Training(workspace)
    rendezvous = Rendezvous(workspace, "c10d", hosts[0])
    for root, devices, strategy in (("ddp", 1, "ddp"), ("ddp2", 2, "ddp2")):
        words = training.words(root, devices, num_nodes=2, more=[f"--trainer.strategy={strategy}"])
        for agent in [host.start(workspace, f"{root}-{host.address}", [*rendezvous.agent(host), *words])
                      for host in hosts]:
            finish(agent)
    expected, got = training.values("ddp"), training.values("ddp2")
    expect_equal(len(got), len(expected), "number of weights")
    largest = max(abs(a - b) for a, b in zip(got, expected))
    if not largest < 1e-4:
        raise AssertionError(f"weights differ by {largest}")


# --- Ranks and hosts that are lost ---


def find_rank(workspace, training, rank, restarts=0):
    """The process of a rank of the program, or nothing."""
    for process, variables in workspace.descendants().items():
        try:
            program = os.readlink(f"/proc/{process}/exe")
        except OSError:
            continue
        if (program == os.path.realpath(training.program) and variables.get("RANK") == str(rank)
                and variables.get("TORCHELASTIC_RESTART_COUNT") == str(restarts)):
            return process
    return None


def kill_rank(workspace, training, rank):
    """Kills a rank of the program where it still runs."""
    with contextlib.suppress(ProcessLookupError):
        if process := find_rank(workspace, training, rank):
            os.kill(process, signal.SIGKILL)


def expect_same_training(training, disturbed, undisturbed):
    expect_equal(training.global_step(disturbed), training.global_step(undisturbed), "global step")
    expect_equal(training.weights(disturbed), training.weights(undisturbed), "weights")


def killed_worker(workspace):
    """A rank is killed; torchrun starts both again, and they go on to the weights of an undisturbed run."""
    training = Training(workspace, images=1000)
    more = [*RESTARTABLE, "--trainer.max_epochs=8"]
    torchrun = [find_torchrun(), "--no-python", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    workspace.run("undisturbed", [*torchrun, *training.words("undisturbed", devices=2, more=more)])

    def attempt(root):
        process = workspace.start(root, [*torchrun, *training.words(root, devices=2, more=more)])
        wait_until(lambda: training.global_step(root) > 0, "there is a checkpoint", 100, still_runs(process))
        kill_rank(workspace, training, rank=1)
        finish(process)

    expect_same_training(training, until_resumed(training, attempt), "undisturbed")


def killed_worker_of_two_hosts(workspace):
    """The same on two hosts, whose agents then count different numbers of restarts."""
    hosts = network_hosts.make_hosts(workspace)
    training = Training(workspace, images=1000)
    more = [*RESTARTABLE, "--trainer.max_epochs=8"]
    rendezvous = Rendezvous(workspace, "c10d", hosts[0])

    def start(root):
        words = training.words(root, devices=1, num_nodes=2, more=more)
        agents = [rendezvous.agent(host, "2", ["--max-restarts=3"]) for host in hosts]
        return [host.start(workspace, f"{root}-{host.address}", [*agent, *words]) for host, agent in zip(hosts, agents)]

    for agent in start("undisturbed"):
        finish(agent)

    def attempt(root):
        agents = start(root)
        wait_until(lambda: training.global_step(root) > 0, "there is a checkpoint", 100, still_runs(agents[0]))
        kill_rank(workspace, training, rank=1)
        for agent in agents:
            finish(agent)

    expect_same_training(training, until_resumed(training, attempt), "undisturbed")


def lost_host(workspace):
    """--nnodes=1:2: a host is lost, the other goes on alone, and with it again when it is back."""
    hosts = network_hosts.make_hosts(workspace)
    training = Training(workspace, images=2000)
    rendezvous = Rendezvous(workspace, "etcd-v2", hosts[0])
    root = "elastic"
    # Nothing says how many hosts there are: it changes.
    words = training.words(root, devices=1, num_nodes=None, more=[*RESTARTABLE, "--trainer.max_epochs=1000"])
    shell = ["sh", "-c", "echo hosts=$GROUP_WORLD_SIZE; exec " + shlex.join(words)]
    # torchrun 2.11 keeps the address of its first store: a host that joins later would wait for it in vain.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def start(host, name):
        return host.start(workspace, name, [*rendezvous.agent(host, "1:2", ["--max-restarts=5"], patience=20), *shell],
                          own_store)

    stays, goes = start(hosts[0], "stays"), start(hosts[1], "goes")

    def numbers_of_hosts():
        return re.findall(r"hosts=(\d)", stays.log.read_text(errors="replace"))

    # Both may start a moment apart, so that the first attempt has one host only.
    wait_until(lambda: numbers_of_hosts()[-1:] == ["2"], "both hosts train", 120, still_runs(stays))
    wait_until(lambda: training.global_step(root) > 0, "there is a checkpoint", 60, still_runs(stays))
    hosts[1].lose(workspace)
    goes.wait()
    wait_until(lambda: numbers_of_hosts()[-1:] == ["1"], "the other host goes on alone", 90, still_runs(stays))
    alone = training.global_step(root)
    wait_until(lambda: training.global_step(root) > alone, "it has trained alone", 60, still_runs(stays))
    hosts[1].come_back()
    again = start(hosts[1], "again")
    wait_until(lambda: numbers_of_hosts()[-1:] == ["2"], "both hosts train again", 90, still_runs(stays))
    together = training.global_step(root)
    wait_until(lambda: training.global_step(root) > together, "they have trained together", 60, still_runs(stays))
    for agent in (stays, again):
        agent.send_signal(signal.SIGTERM)
    for agent in (stays, again):
        agent.wait(60)


if __name__ == "__main__":
    sys.exit(main({
        "one_host": one_host,
        "secret": secret,
        "disagreement": disagreement,
        "two_hosts_c10d": lambda workspace: two_hosts(workspace, "c10d"),
        "two_hosts_etcd": lambda workspace: two_hosts(workspace, "etcd-v2"),
        "two_hosts_ddp2": two_hosts_ddp2,
        "killed_worker": killed_worker,
        "killed_worker_of_two_hosts": killed_worker_of_two_hosts,
        "lost_host": lost_host,
    }))
