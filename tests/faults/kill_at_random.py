"""Runs small trainings of several processes, ends one process of each at a random moment, and checks what is left.

    kill_at_random.py [--strategy ddp] [--rounds 5] [--seed 0]

Moments lie between the first 50 ms and just after the end, most of them where processes start and where they part.
After each of them: nothing crashes, all has ended within 10 s, nothing remains of it, rank 0 says which rank it was, and
what was saved is whole."""

import argparse
import contextlib
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))
import support  # noqa: E402  pylint: disable=wrong-import-position

STRATEGIES = ("ddp", "sharded", "pipeline")
LIMIT_SECONDS = 10  # for everything to end
STEPS = 12
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
CRASH_WORDS = re.compile(r"ended by signal (4|6|7|8|11) |terminate called|AddressSanitizer|ThreadSanitizer")
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Processes whose parent has ended become this one's children, so that their ends are seen here."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Job:
    """One training under way: the process that was started is rank 0, which starts the others."""

    def __init__(self, workspace, training, strategy, number):
        self._workspace = workspace
        self.root = workspace.folder / f"run{number}"
        self.temporary = workspace.folder / f"temporary{number}"
        self.temporary.mkdir()
        self.began = time.monotonic()
        self.process = workspace.start(
            f"run{number}",
            training.words(f"run{number}", 2, more=[
                f"--trainer.strategy={strategy}", "--trainer.max_epochs=1", f"--trainer.limit_train_batches={STEPS}",
                "--trainer.limit_val_batches=1", "--data.num_workers=0", "--trainer.logger=csv"]),
            {"TMPDIR": str(self.temporary)})
        self.ends = {}  # of processes that became this one's children: {process id: signal, or 0}

    def ranks(self):
        """{rank: process id} of what runs."""
        found = {}
        for process, variables in self._workspace.descendants().items():
            with contextlib.suppress(OSError):
                if (Path("/proc") / str(process) / "exe").resolve().name == Path(self.process.args[0]).name:
                    found[int(variables.get("LEVIN_RANK", 0))] = process
        return found

    def reap(self):
        self.process.poll()
        with contextlib.suppress(ChildProcessError):
            # Its own process belongs to subprocess, which would miss its status.
            while (end := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if end.si_pid == self.process.pid:
                    self.process.wait()
                    continue
                os.waitpid(end.si_pid, 0)
                self.ends[end.si_pid] = 0 if end.si_code == os.CLD_EXITED else end.si_status

    def has_ended(self):
        self.reap()
        return self.process.returncode is not None and not self._workspace.descendants()

    def seconds(self):
        return time.monotonic() - self.began

    def output(self):
        return self.process.log.read_text(errors="replace")

    def last(self):
        return self.root / "version_0/checkpoints/last"

    def wait_for(self, condition, seconds=60):
        """False when the job ended before, or took too long."""
        while not condition():
            self.reap()
            if self.process.returncode is not None or self.seconds() > seconds:
                return condition()
            time.sleep(0.002)
        return True


class Campaign:
    """Rounds of one strategy."""

    def __init__(self, workspace, training, strategy, chance):
        self._workspace = workspace
        self._training = training
        self._strategy = strategy
        self._chance = chance
        self._number = 0
        self._verify = training.program.parent / "levin-checkpoint"
        self._whole_seconds = self._undisturbed()

    def _start(self):
        self._number += 1
        return Job(self._workspace, self._training, self._strategy, f"-{self._strategy}-{self._number}")

    def _undisturbed(self):
        job = self._start()
        support.wait_until(job.has_ended, f"a run with {self._strategy} ends")
        support.expect_equal(job.process.returncode, 0, f"the status of an undisturbed run\n{job.output()}\n")
        self._expect_whole(job, must_be_there=True)
        return job.seconds()

    def _await_moment(self, job):
        """Waits for a random moment and says which it was."""
        kind = self._chance.choice(("start", "start", "any", "end", "end"))
        if kind == "start" and job.wait_for(lambda: 1 in job.ranks()):
            delay = self._chance.uniform(0, 0.3 * self._whole_seconds)
        elif kind == "end" and job.wait_for((job.last() / "manifest.json").exists):
            delay = self._chance.choice((0.05, 0.2, 0.5)) * self._chance.random()
        else:
            delay = self._chance.uniform(0.05, self._whole_seconds) - job.seconds()
        until = time.monotonic() + delay
        while time.monotonic() < until and job.process.poll() is None:
            time.sleep(0.001)
        return f"{kind} {job.seconds():.3f} s"

    def round(self):
        """Returns a line on what was done; none where the run had ended before its moment came."""
        job = self._start()
        moment = self._await_moment(job)
        ranks = job.ranks()
        finished = (job.last() / "manifest.json").exists()
        how = self._chance.choices(("SIGKILL", "SIGTERM", "SIGINT"), (14, 3, 3))[0]
        victim = self._chance.choice(sorted(ranks)) if ranks else None
        if victim is None:
            what = "nothing"
        elif how == "SIGINT":  # Ctrl-C: to all processes of the terminal's group
            what = "all interrupted"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGINT)
        else:
            what = f"{how} to rank {victim}"
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[victim], getattr(signal, how))
        killed = time.monotonic()
        try:
            while not job.has_ended():
                if time.monotonic() - killed > LIMIT_SECONDS:
                    raise AssertionError(f"after {LIMIT_SECONDS} s these still run: {stacks(job.ranks())}")
                time.sleep(0.01)
            took = time.monotonic() - killed
            self._expect_no_crash(job)
            self._expect_nothing_left(job, ranks)
            if how == "SIGKILL" and victim not in (None, 0) and job.process.returncode != 0:
                support.expect_contains(job.output(), f"rank {victim} was ended by signal 9", "rank 0's output")
            self._expect_whole(job, must_be_there=finished or job.process.returncode == 0)
            if victim is None:  # how long one takes depends on what else the machine does
                self._whole_seconds *= 0.9
                return None
        except AssertionError as failure:
            raise AssertionError(f"{moment}, {what}: {failure}\n---- output\n{job.output()[-6000:]}") from None
        finally:
            subprocess.run(["rm", "-rf", job.root, job.temporary], check=False)
        words = [line for line in job.output().splitlines() if "[levin" in line or "error" in line]
        return (f"{moment}, {what}; ended {took:.1f} s later with status {job.process.returncode}: "
                f"{words[-1] if words else 'no word'}")

    @staticmethod
    def _expect_no_crash(job):
        ends = {**job.ends, job.process.pid: max(0, -job.process.returncode)}
        crashed = {process: number for process, number in ends.items() if number in CRASHES}
        if crashed:
            raise AssertionError(f"these processes crashed: {crashed}")
        if found := CRASH_WORDS.search(job.output()):
            raise AssertionError(f"something crashed: {found.group()!r}")

    @staticmethod
    def _expect_nothing_left(job, ranks):
        left = [str(path) for path in job.temporary.iterdir()]
        numbers = {str(process) for process in (*ranks.values(), job.process.pid)}
        left += [name for name in os.listdir("/dev/shm") if numbers & set(re.findall(r"\d+", name))]
        if left:
            raise AssertionError(f"these were left behind: {left}")

    def _expect_whole(self, job, must_be_there):
        """Every checkpoint that has its name is whole."""
        if must_be_there and not (job.last() / "manifest.json").exists():
            raise AssertionError("there is no last checkpoint")
        for manifest in job.root.glob("version_*/checkpoints/*/manifest.json"):
            if manifest.parent.name.startswith("."):
                continue
            result = subprocess.run([self._verify, "verify", manifest.parent], capture_output=True, text=True,
                                    check=False)
            support.expect_equal(result.returncode, 0, f"verify {manifest.parent}: {result.stdout}{result.stderr}")


def stacks(processes):
    """Where the threads of processes are, as far as gdb is there to say it."""
    texts = []
    for rank, process in sorted(processes.items()):
        text = ""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            text = subprocess.run(["gdb", "-p", str(process), "-batch", "-ex", "thread apply all backtrace 12"],
                                  capture_output=True, text=True, check=False, timeout=60).stdout
        frames = "\n".join(line for line in text.splitlines() if line.startswith(("#", "Thread")))
        texts.append(f"rank {rank} (process {process})\n{frames}")
    return "\n".join(texts)


def run(arguments, workspace):
    adopt_orphans()
    training = support.Training(workspace)
    failures = 0
    for strategy in [arguments.strategy] if arguments.strategy else STRATEGIES:
        campaign = Campaign(workspace, training, strategy, random.Random(f"{strategy} {arguments.seed}"))
        for number in range(arguments.rounds):
            try:
                while not (line := campaign.round()):
                    pass
                print(f"{strategy} {number}: {line}", flush=True)
            except AssertionError as failure:
                failures += 1
                print(f"{strategy} {number}: FAILED {failure}", flush=True)
                workspace.kill_descendants()
                if not arguments.keep_going:
                    return 1
    print(f"{failures} rounds failed" if failures else "passed")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--strategy", help=f"default: one after the other, {', '.join(STRATEGIES)}")
    parser.add_argument("--rounds", type=int, default=5, help="of each strategy")
    parser.add_argument("--seed", default="0", help="another one, other moments")
    parser.add_argument("--keep-going", action="store_true", help="after a round that failed")
    arguments = parser.parse_args()
    try:
        with support.Workspace(seconds=200 + 30 * arguments.rounds) as workspace:
            return run(arguments, workspace)
    except support.Skip as reason:
        print(f"skipped: {reason}")
        return support.SKIPPED
    except support.Interrupted as reason:
        print(f"interrupted: {reason}", file=sys.stderr)
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
    return 1


if __name__ == "__main__":
    sys.exit(main())
