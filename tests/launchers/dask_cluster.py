"""A Dask cluster of one scheduler and four workers on loopback, and what it says of the tasks it ran."""

import json
import os
import subprocess

from support import SOURCE, Skip, still_runs, wait_until

DISPATCHER = SOURCE / "scripts/levin-dask"
WORKERS = ("north", "east", "south", "west")
# Asked for the first time, the scheduler begins to record.
RECORD = """
import json, sys
from distributed import Client
with Client(sys.argv[1]) as client:
    print(json.dumps([(record["key"], record["worker"], times["start"], times["stop"])
                      for record in client.get_task_stream() for times in record["startstops"]
                      if times["action"] == "compute"]))
"""


def find_python():
    """The Python of the tests that has Dask."""
    python = os.environ.get("LEVIN_TEST_PYTHON", str(SOURCE / ".deps/test-venv/bin/python"))
    if not os.path.exists(python) or subprocess.run([python, "-c", "import distributed"], capture_output=True,
                                                    cwd=SOURCE, check=False).returncode != 0:
        raise Skip("there is no Python package distributed; hint: scripts/bootstrap --with-test-packages")
    return python


class DaskCluster:
    """Started and ended with the workspace."""

    def __init__(self, workspace):
        self._workspace = workspace
        self._python = find_python()
        file = workspace.folder / "scheduler.json"
        common = ["--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard"]
        scheduler = workspace.start("scheduler", [self._python, "-m", "distributed.cli.dask_scheduler", *common,
                                                  "--port", "0"])
        wait_until(file.exists, "the scheduler serves", 100, still_runs(scheduler))
        self.address = json.loads(file.read_text())["address"]
        self.workers = {name: workspace.start(name, [self._python, "-m", "distributed.cli.dask_worker", *common,
                                                     "--no-nanny", "--nthreads", "1", "--name", name])
                        for name in WORKERS}
        for worker in self.workers.values():
            wait_until(lambda each=worker: "Registered to" in each.log.read_text(errors="replace"),
                       "the worker is registered", 100, still_runs(worker))
        self.record()

    def words(self, ranks, program):
        """The command line that runs a program on the cluster."""
        return [self._python, DISPATCHER, "--scheduler", self.address, f"--ranks={ranks}", "--", *program]

    def record(self):
        """(key, worker, start, stop) of each task, by Dask's own record."""
        return json.loads(self._workspace.run("record", [self._python, "-c", RECORD, self.address]).splitlines()[-1])
