"""Trains on two "hosts", network namespaces whose only link is a relay of this script, which loses, delays and doubles
packets, interrupts, or is gone from one moment on.

    bad_link.py [--strategy ddp,sharded] [--ways lossy,gone] [--rounds 1] [--seed 0]

A link that is only bad changes nothing: the job ends with the weights of one on a good link. Where it is gone, each
host ends with a status other than 0 and one message, which says that the other one's rank is gone, and what was saved
is whole; how long it took is printed."""

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))
import network_hosts  # noqa: E402  pylint: disable=wrong-import-position
import support  # noqa: E402  pylint: disable=wrong-import-position

STRATEGIES = ("ddp", "sharded", "pipeline", "parameter_server")
# Per packet: the part that is lost, that is doubled, and seconds of delay at most; seconds between two interruptions
# and seconds of one.
WAYS = {
    "good": (0, 0, 0, None, 0),
    "lossy": (0.01, 0, 0, None, 0),
    "late": (0, 0, 0.02, None, 0),
    "doubled": (0, 0.1, 0.002, None, 0),
    "interrupted": (0, 0, 0, 1.5, 1.0),
    "gone": (0, 0, 0, None, 0),
}
LIMIT_SECONDS = 120  # until all has ended: only a hang takes so long
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


class Relay(threading.Thread):
    """Carries packets between the devices of two namespaces."""

    def __init__(self, devices, chance):
        super().__init__(daemon=True)
        self._devices = devices
        self._chance = chance
        self._way = WAYS["good"]
        self._began = time.monotonic()
        self.gone = False
        self.carried = self.lost = 0
        self._over = False

    def set_way(self, way):
        self._began = time.monotonic()
        self.gone = False
        self._way = WAYS[way]

    def end(self):
        self._over = True
        self.join()

    def _is_cut(self, now):
        _, _, _, between, length = self._way
        return self.gone or (between is not None and (now - self._began) % (between + length) > between)

    def run(self):
        waiting = []  # (when, number, device, packet)
        number = 0
        while not self._over:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, device, packet = heapq.heappop(waiting)
                self._send(device, packet)
            patience = min(0.05, waiting[0][0] - now) if waiting else 0.05
            for source in select.select(self._devices, [], [], max(0, patience))[0]:
                packet = os.read(source, 65536)
                target = self._devices[1 - self._devices.index(source)]
                loses, doubles, delay, _, _ = self._way
                now = time.monotonic()
                if self._is_cut(now) or self._chance.random() < loses:
                    self.lost += 1
                    continue
                for _ in range(2 if self._chance.random() < doubles else 1):
                    number += 1
                    heapq.heappush(waiting, (now + delay * self._chance.random(), number, target, packet))

    def _send(self, device, packet):
        try:
            os.write(device, packet)
            self.carried += 1
        except OSError:  # its namespace is going, or its queue is full: a packet that is lost
            self.lost += 1


def open_device(namespace):
    """Returns a descriptor of a new TUN device in the namespace. Its own thread visits the namespace."""
    opened = []

    def visit():
        try:
            with open(f"/run/netns/{namespace}", "rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", network_hosts.INTERFACE.encode(), IFF_TUN | IFF_NO_PI))
            opened.append(device)
        except OSError as error:
            opened.append(error)

    thread = threading.Thread(target=visit)
    thread.start()
    thread.join()
    if isinstance(opened[0], OSError):
        raise support.Skip(f"no network device can be made in a namespace here: {opened[0]}")
    return opened[0]


def start(workspace, training, hosts, name, strategy, epochs):
    """Starts a rank on each host, as a launcher would."""
    # Where a pipeline is cut would else depend on measured times, and with it which file has what.
    cut = ", balance_by: parameters" if strategy == "pipeline" else ""
    words = training.words(name, devices=1, num_nodes=2, more=[
        f"--trainer.strategy={{{strategy}: {{backend: gloo{cut}}}}}", f"--trainer.max_epochs={epochs}",
        "--trainer.limit_train_batches=12", "--trainer.limit_val_batches=1", "--data.num_workers=0",
        "--trainer.logger=csv",
        "--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 4, save_last: true}}]"])
    return [host.start(workspace, f"{name}-{host.address}", words,
                       {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                        "GROUP_RANK": str(rank), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500"})
            for rank, host in enumerate(hosts)]


def outputs(processes):
    return "".join(f"---- {process.log.name}\n{process.log.read_text(errors='replace')[-3000:]}\n"
                   for process in processes)


def last_weights(training, name):
    files = sorted((training.versions(name)[-1] / "checkpoints/last").glob("model*.safetensors"))
    contents = [file.read_bytes() for file in files]
    if not contents:
        raise AssertionError(f"{name} saved no weights")
    # The header of a sharded one has the token of its save.
    return [content[8 + int.from_bytes(content[:8], "little"):] for content in contents]


def bad(workspace, training, hosts, relay, name, strategy, way):
    """Returns the weights of a run on a link of that kind."""
    relay.set_way(way)
    processes = start(workspace, training, hosts, name, strategy, epochs=2)
    try:
        for process in processes:
            support.finish(process, LIMIT_SECONDS)
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n{outputs(processes)}") from None
    return last_weights(training, name)


def gone(workspace, training, hosts, relay, name, strategy, chance):
    """Returns a line on how a job ended whose link was cut while it trained."""
    relay.set_way("good")
    processes = start(workspace, training, hosts, name, strategy, epochs=100_000)
    support.wait_until(lambda: training.global_step(name) > 0, "there is a checkpoint", LIMIT_SECONDS,
                       support.still_runs(processes[0]))
    time.sleep(chance.uniform(0, 1))
    relay.gone = True
    began = time.monotonic()
    try:
        for process in processes:
            try:
                process.wait(max(0.1, began + LIMIT_SECONDS - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"a host still runs {LIMIT_SECONDS} s after the link was gone") from None
        took = time.monotonic() - began
        for rank, process in enumerate(processes):
            if process.returncode <= 0:
                raise AssertionError(f"rank {rank} ended with status {process.returncode}")
            text = process.log.read_text(errors="replace")
            messages = [line for line in text.splitlines() if line.startswith("error: [")]
            support.expect_equal(len(messages), 1, f"the number of messages of rank {rank}")
            support.expect_contains(messages[0], f"rank {1 - rank} is gone", f"the message of rank {rank}")
        verify = training.program.parent / "levin-checkpoint"
        for manifest in training.root(name).glob("version_*/checkpoints/*/manifest.json"):
            if not manifest.parent.name.startswith("."):
                result = subprocess.run([verify, "verify", manifest.parent], capture_output=True, text=True, check=False)
                support.expect_equal(result.returncode, 0, f"verify {manifest.parent}: {result.stdout}{result.stderr}")
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n{outputs(processes)}") from None
    finally:
        for process in processes:
            support.end_process(process, 1)
    return f"both hosts said so and had ended {took:.1f} s later"


def run(arguments, workspace):
    chance = random.Random(arguments.seed)
    hosts = network_hosts.make_namespaces(workspace)
    relay = Relay([open_device(host.namespace) for host in hosts], chance)
    network_hosts.bring_up(hosts)
    relay.start()
    workspace.defer(relay.end)
    training = support.Training(workspace)
    failures = 0
    for strategy in arguments.strategy:
        expected = None
        for number in range(arguments.rounds):
            for way in arguments.ways:
                name = f"{strategy}-{way}-{number}"
                try:
                    if way == "gone":
                        line = gone(workspace, training, hosts, relay, name, strategy, chance)
                    else:
                        expected = expected or bad(workspace, training, hosts, relay, f"{strategy}-{number}", strategy,
                                                   "good")
                        lost = relay.lost
                        began = time.monotonic()
                        if bad(workspace, training, hosts, relay, name, strategy, way) != expected:
                            raise AssertionError("the weights are others than on a good link")
                        line = f"the same weights after {time.monotonic() - began:.1f} s, {relay.lost - lost} packets lost"
                    print(f"{name}: {line}", flush=True)
                except AssertionError as failure:
                    failures += 1
                    print(f"{name}: FAILED {failure}", flush=True)
    print(f"{failures} tries failed" if failures else "passed")
    return 1 if failures else 0


def main():
    ways = [way for way in WAYS if way != "good"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--strategy", default=",".join(STRATEGIES), type=lambda text: text.split(","))
    parser.add_argument("--ways", default=",".join(ways), type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", default="0", help="another one, other packets and moments")
    arguments = parser.parse_args()
    if unknown := [way for way in arguments.ways if way not in ways]:
        parser.error(f"--ways: got {', '.join(unknown)}; valid: {', '.join(ways)}")
    tries = len(arguments.strategy) * len(arguments.ways) * arguments.rounds
    try:
        with support.Workspace(seconds=60 + 120 * tries) as workspace:
            return run(arguments, workspace)
    except support.Skip as reason:
        print(f"skipped: {reason}")
        return support.SKIPPED
    except support.Interrupted as reason:
        print(f"interrupted: {reason}", file=sys.stderr)
    except AssertionError as failure:
        print(f"failed: {failure}", file=sys.stderr)
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
    return 1


if __name__ == "__main__":
    sys.exit(main())
