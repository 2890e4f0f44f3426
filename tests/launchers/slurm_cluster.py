"""A SLURM cluster on this machine: munged, slurmctld and a slurmd for each node, on private ports and folders."""

import os
import pwd
import re
import socket
import subprocess

from support import Skip, find_program, free_ports, require_root, still_runs, wait_until

NODES = ("levin-n01", "levin-n02")

CONFIG = """\
ClusterName=levin
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.out
SlurmdLogFile={folder}/slurmd-%n.out
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
ReturnToService=2
SlurmdTimeout=60
KillWait=5
{nodes}
PartitionName=tests Nodes={names} Default=YES MaxTime=5 State=UP OverSubscribe=FORCE:8
"""


class SlurmCluster:
    """The running cluster. Its clients (`srun`, `sbatch`) find it through `environment`."""

    def __init__(self, workspace):
        for program in ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol"):
            find_program(program)
        require_root("start SLURM's daemons")
        try:
            pwd.getpwnam("munge")
        except KeyError:
            raise Skip("munge is not set up: there is no user munge") from None
        self._workspace = workspace
        self.folder = workspace.folder / "slurm"
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._write_config()
        self._start()

    def _write_config(self):
        self.folder.mkdir()
        (self.folder / "state").mkdir()
        cores = max(2, os.cpu_count() or 2)
        controller_port, *node_ports = free_ports(1 + len(NODES))
        nodes = "\n".join(f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
                          f"CPUs={cores} State=UNKNOWN" for name, port in zip(NODES, node_ports))
        (self.folder / "slurm.conf").write_text(CONFIG.format(
            host=socket.gethostname(), controller_port=controller_port, folder=self.folder, nodes=nodes,
            names=",".join(NODES)))
        # Without this file slurmd looks for the system's control groups, which a container may not have.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def _start(self):
        workspace, folder = self._workspace, self.folder
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        munged = workspace.start("munged", [
            find_program("munged"), "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.out", f"--seed-file={folder}/munge.seed",
            "--num-threads=2"])
        wait_until((folder / "munge.socket").exists, "munged listens", 100, still_runs(munged))
        daemons = [workspace.start("slurmctld", [find_program("slurmctld"), "-D", "-i"], self.environment)]
        for name in NODES:
            (folder / f"spool-{name}").mkdir()
            daemons.append(workspace.start(f"slurmd-{name}", [find_program("slurmd"), "-D", "-N", name],
                                           self.environment))

        def check():
            for daemon in daemons:
                still_runs(daemon)()

        wait_until(self._nodes_are_idle, "the nodes are idle", 100, check)

    def _nodes_are_idle(self):
        environment = dict(self._workspace.environment, **self.environment)
        shown = subprocess.run([find_program("scontrol"), "show", "nodes", "--oneliner"], env=environment,
                               capture_output=True, text=True, check=False).stdout
        return len(re.findall(r"State=IDLE\b(?!\*)", shown)) == len(NODES)

    def run(self, name, words, seconds=200):
        """Runs a client of SLURM, which must end well, and returns what it wrote."""
        return self._workspace.run(name, words, self.environment, seconds)
