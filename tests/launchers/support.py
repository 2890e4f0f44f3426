"""What the launcher tests share: a workspace that ends and removes all it made, and small training runs."""

import array
import contextlib
import gzip
import itertools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
SKIPPED = 77  # the exit status that ctest takes for "skipped"
MARK = "LEVIN_LAUNCHER_TEST"
# One test may take so long unless it says so; ctest would kill it some time later, without letting it clean up.
DEADLINE_SECONDS = 240


class Skip(Exception):
    """The test cannot run here; the text says why."""


class Interrupted(BaseException):
    """A signal or the deadline ended the test."""


def find_program(*names):
    """The first of these programs that there is, else the test is skipped."""
    folders = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    for name in names:
        path = shutil.which(name, path=folders)
        if path:
            return path
    raise Skip(f"there is no {' or '.join(names)}; hint: scripts/bootstrap")


def find_torchrun():
    """torchrun beside the Python that the tests use."""
    python = Path(os.environ.get("LEVIN_PYTHON", SOURCE / ".deps/venv/bin/python"))
    torchrun = python.parent / "torchrun"
    if not torchrun.exists():
        raise Skip(f"there is no {torchrun}; hint: scripts/bootstrap")
    return str(torchrun)


def require_root(reason):
    if os.geteuid() != 0:
        raise Skip(f"only root may {reason}")


def wait_until(condition, what, seconds=120, also=lambda: None):
    """Waits until the condition gives something, and returns that; `also` may raise what makes waiting vain."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        try:
            also()
        except AssertionError:
            if value := condition():  # it came just before what makes waiting vain
                return value
            raise
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain until {what}")
        time.sleep(0.05)


class Workspace:
    """A temporary folder and the processes started in it. Leaving it, in whatever way, runs what was deferred, last
    first, ends the processes with all their descendants, and removes the folder."""

    def __init__(self, seconds=DEADLINE_SECONDS):
        def interrupt(number, _frame):
            raise Interrupted("the deadline has passed" if number == signal.SIGALRM else f"signal {number}")

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, interrupt)
        signal.alarm(seconds)
        self.folder = Path(tempfile.mkdtemp(prefix="levin_launcher_"))
        self.folder.chmod(0o755)  # SLURM's daemons and munge insist on being able to enter it
        self._token = uuid.uuid4().hex
        self._deferred = contextlib.ExitStack()
        self._logs = []
        self.environment = dict(os.environ, OMP_NUM_THREADS="1", **{MARK: self._token})

    def __enter__(self):
        return self

    def __exit__(self, kind, _error, _trace):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        try:
            self._deferred.close()
        finally:
            self.kill_descendants()
            if kind not in (None, Skip):
                self._show_logs()
            shutil.rmtree(self.folder, ignore_errors=True)

    def defer(self, action, *arguments):
        self._deferred.callback(action, *arguments)

    def start(self, name, words, environment=None):
        """Starts a process, in a session of its own, that writes to the log of that name."""
        log = self.folder / f"{name}.log"
        self._logs.append(log)
        with open(log, "ab") as output:
            process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True,
                                       env=dict(self.environment, **(environment or {})))
        process.log = log
        self.defer(end_process, process)
        return process

    def run(self, name, words, environment=None, seconds=200):
        """Runs a process to its end, which must be a good one, and returns what it wrote."""
        process = self.start(name, words, environment)
        finish(process, seconds)
        return process.log.read_text(errors="replace")

    def descendants(self):
        """{process id: its environment} of all that was started here, directly or not, and is still there."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                lines = (folder / "environ").read_bytes().split(b"\0")
                variables = dict(line.decode(errors="replace").split("=", 1) for line in lines if b"=" in line)
                if variables.get(MARK) == self._token:
                    found[int(folder.name)] = variables
        return found

    def kill_descendants(self):
        for _ in range(100):
            processes = self.descendants()
            if not processes:
                return
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)

    def _show_logs(self):
        for log in dict.fromkeys(self._logs):
            if log.exists():
                text = log.read_text(errors="replace")
                print(f"---- {log.name}\n{text[-6000:]}", file=sys.stderr)


def end_process(process, seconds=15):
    """Asks a process to end, and after a while kills it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def finish(process, seconds=200):
    """Waits for a process that must end well."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{process.args[0]} still runs after {seconds} s") from None
    if status != 0:
        raise AssertionError(f"{' '.join(process.args)} ended with status {status}")


def still_runs(process):
    """For wait_until: a process that has ended makes waiting vain."""

    def check():
        if process.poll() is not None:
            raise AssertionError(f"{process.args[0]} ended with status {process.returncode} too early")

    return check


# --- Training ---


def write_tiny_fashion(folder, training, test):
    """A data set in the form of Fashion-MNIST's, as tests/integration/tiny_fashion.h writes it."""
    folder.mkdir(parents=True)
    for prefix, count in (("train", training), ("t10k", test)):
        noise = 12345
        pixels = bytearray()
        for image in range(count):
            for row in range(28):
                bar = 150 if row // 2 - 2 == image % 10 else 0
                for _ in range(28):
                    noise = (noise * 1664525 + 1013904223) & 0xFFFFFFFF
                    pixels.append(bar + (noise >> 24) % 100)
        images = struct.pack(">HBBIII", 0, 8, 3, count, 28, 28) + pixels
        labels = struct.pack(">HBBI", 0, 8, 1, count) + bytes(image % 10 for image in range(count))
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels, 1))


class Training:
    """Small runs of the example program with strategy ddp, on a tiny data set in the workspace."""

    def __init__(self, workspace, images=200):
        binary = Path(os.environ.get("LEVIN_BINARY_DIR", SOURCE / "build"))
        self.program = Path(os.environ.get("LEVIN_LAUNCHER_PROGRAM", binary / "bin/fashion_mnist"))
        if not self.program.exists():
            raise Skip(f"there is no {self.program}; hint: build the examples")
        self._workspace = workspace
        write_tiny_fashion(workspace.folder / "data", images, 40)

    def words(self, root, devices, num_nodes=1, more=()):
        """The command line of a run that writes below `root`; without num_nodes (None) it takes what is started."""
        if num_nodes is not None:
            more = [f"--trainer.num_nodes={num_nodes}", *more]
        return [str(self.program), "fit", "--config", str(SOURCE / "examples/fashion_mnist/mlp.yaml"),
                "--trainer.strategy=ddp", "--trainer.accelerator=cpu", f"--trainer.devices={devices}",
                f"--trainer.default_root_dir={self.root(root)}",
                f"--data.root={self._workspace.folder / 'data'}", "--data.val_size=40", "--data.batch_size=8",
                "--trainer.enable_progress_bar=false", *more]

    def root(self, name):
        return self._workspace.folder / name

    def versions(self, root):
        """The folders of the runs below `root`, oldest first."""
        return sorted(self.root(root).glob("version_*"), key=lambda path: int(path.name.split("_")[1]))

    def weights(self, root):
        """The bytes of the last checkpoint's weights."""
        return (self.versions(root)[-1] / "checkpoints/last/model.safetensors").read_bytes()

    def values(self, root):
        """All numbers of the last checkpoint's weights, which are float32."""
        weights = self.weights(root)
        header = 8 + struct.unpack("<Q", weights[:8])[0]
        return array.array("f", weights[header:])

    def global_step(self, root):
        """The step of the last checkpoint of the newest run that has one; 0 where there is none."""
        for version in reversed(self.versions(root)):
            manifest = version / "checkpoints/last/manifest.json"
            with contextlib.suppress(FileNotFoundError):
                return json.loads(manifest.read_text())["global_step"]
        return 0


def until_resumed(training, attempt):
    """Repeats `attempt`, which is given the name of a root, trains there and kills a part of the run, and returns the
    root of the first run that was resumed: on a busy machine one may be over before it is disturbed."""
    for number in itertools.count():
        root = f"disturbed{number}"
        attempt(root)
        if len(training.versions(root)) > 1:
            return root


def free_ports(count):
    """Ports that nobody used a moment ago, and no two the same."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def expect_equal(actual, expected, what):
    if actual != expected:
        raise AssertionError(f"{what}: {actual!r:.200} is not {expected!r:.200}")


def expect_contains(text, part, what):
    if part not in text:
        raise AssertionError(f"{what} does not contain {part!r}")


def main(cases):
    """Runs the case that the command line names; the exit status is that of ctest."""
    if len(sys.argv) != 2 or sys.argv[1] not in cases:
        print(f"usage: {sys.argv[0]} CASE, one of: {', '.join(cases)}", file=sys.stderr)
        return 2
    try:
        with Workspace() as workspace:
            cases[sys.argv[1]](workspace)
    except Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    except Interrupted as reason:
        print(f"interrupted: {reason}", file=sys.stderr)
        return 1
    except AssertionError as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        return 1
    print("passed")
    return 0
