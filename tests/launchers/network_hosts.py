"""Two "hosts" for tests: network namespaces that a virtual cable connects."""

import contextlib
import os
import re
import signal
import subprocess

from support import Skip, find_program, require_root

INTERFACE = "cable"  # the name of the network interface in every namespace


class Host:
    """A network namespace with one address, reached from the other host only."""

    def __init__(self, ip, namespace, address):
        self._ip = ip
        self.namespace = namespace
        self.address = address
        # Gloo would else bind to what the machine's name resolves to, which is not in the namespace.
        self.environment = {"GLOO_SOCKET_IFNAME": INTERFACE, "LEVIN_TEST_HOST": namespace}

    def words(self, *words):
        """The command line that runs these words on the host."""
        return [self._ip, "netns", "exec", self.namespace, *words]

    def start(self, workspace, name, words, environment=None):
        return workspace.start(name, self.words(*words), {**self.environment, **(environment or {})})

    def lose(self, workspace):
        """The host vanishes: its cable is cut first, so that nobody hears its processes end."""
        self._link("down")
        for process, variables in workspace.descendants().items():
            if variables.get("LEVIN_TEST_HOST") == self.namespace:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def come_back(self):
        self._link("up")

    def _link(self, state):
        subprocess.run(self.words(self._ip, "link", "set", INTERFACE, state), check=True)


def remove_leftovers(ip):
    """Removes the namespaces of tests that were killed before they could."""
    for line in subprocess.run([ip, "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines():
        match = re.match(r"levin-(\d+)-[ab]\b", line)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            subprocess.run([ip, "netns", "delete", match[0]], check=False)


def make_namespaces(workspace):
    """Two hosts without a cable, which go when the workspace does."""
    ip = find_program("ip")
    require_root("make network namespaces")
    remove_leftovers(ip)
    hosts = [Host(ip, f"levin-{os.getpid()}-{letter}", f"10.77.0.{number}") for number, letter in ((1, "a"), (2, "b"))]
    for host in hosts:
        run(ip, "netns", "add", host.namespace)
        workspace.defer(subprocess.run, [ip, "netns", "delete", host.namespace])
    return hosts


def bring_up(hosts):
    """Gives each host its address, once it has its end of the cable."""
    ip = find_program("ip")
    for host in hosts:
        run(ip, "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        run(ip, "-n", host.namespace, "link", "set", INTERFACE, "up")
        run(ip, "-n", host.namespace, "link", "set", "lo", "up")


def make_hosts(workspace):
    """Two hosts with a cable between them, which go when the workspace does."""
    hosts = make_namespaces(workspace)
    run(find_program("ip"), "link", "add", INTERFACE, "netns", hosts[0].namespace, "type", "veth",
        "peer", "name", INTERFACE, "netns", hosts[1].namespace)
    bring_up(hosts)
    return hosts


def run(*words):
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Skip(f"network namespaces do not work here: {' '.join(words)}: {result.stderr.strip()}")
