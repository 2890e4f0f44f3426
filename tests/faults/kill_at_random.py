"""Runs small trainings of several processes, does something to one process of each at a random moment, and checks what
comes of it.

    kill_at_random.py [--strategy ddp] [--ways killed,paused] [--rounds 5] [--seed 0]

Ways: `killed` (or asked to end), `stopped` for good, `paused` for up to two seconds, `slowed` to a part of its time.
Moments lie between the first 50 ms and just after the end, most of them where processes start and where they part.

Where a process is killed: nothing crashes, all ends, nothing remains of it, rank 0 says which rank it was, and what was
saved is whole; how long it took is printed. Where it is stopped the same, but that the others take it for dead after
8 s, and that its launcher kills it after 12 s where it does not train. A run that did not end well is resumed, and ends
with the weights of one that nobody disturbed; now and then it is resumed with another number of ranks, and ends well. A
run that was paused or slowed ends well by itself, with the same weights."""

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

STRATEGIES = ("ddp", "ddp_spawn", "ddp_threads", "sharded", "sharded_spawn", "sharded_threads", "pipeline",
              "pipeline_spawn", "pipeline_threads", "parameter_server", "parameter_server_spawn",
              "parameter_server_threads", "horovod", "mesh")
MESH = "{pipeline: 2, shard: 2}"  # of four ranks, as processes
DIVIDE_ANEW = ("ddp", "sharded")  # families that resume at any number of ranks
LIMIT_SECONDS = 120  # for everything to end: only a hang takes so long
WAYS = ("killed", "stopped", "paused", "slowed")
STEPS = 12
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
CRASH_WORDS = re.compile(r"ended by signal (4|6|7|8|11) |terminate called|AddressSanitizer|ThreadSanitizer")
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Processes whose parent has ended become this one's children, so that their ends are seen here."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def usual_devices(strategy):
    return 4 if strategy == "mesh" else 2


class Job:
    """One training under way: the process that was started is rank 0, which starts the others, or forks all."""

    def __init__(self, workspace, training, strategy, number, epochs=1, devices=None, mesh=MESH):
        devices = devices or usual_devices(strategy)
        self._workspace = workspace
        self._is_forked = strategy.endswith("_spawn")  # what was started is no rank, and the ranks have its environment
        self.root = workspace.folder / f"run{number}"
        self.temporary = workspace.folder / f"temporary{number}"
        self.temporary.mkdir(exist_ok=True)
        self.began = time.monotonic()
        self.process = workspace.start(
            f"run{number}",
            training.words(f"run{number}", devices, more=[
                f"--trainer.strategy={mesh if strategy == 'mesh' else strategy}", f"--trainer.max_epochs={epochs}", "--ckpt=auto",
                f"--trainer.limit_train_batches={STEPS}", "--trainer.limit_val_batches=1", "--data.num_workers=0",
                "--trainer.logger=csv",
                "--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 4, save_last: true}}]"]),
            {"TMPDIR": str(self.temporary)})
        self.ends = {}  # of processes that became this one's children: {process id: signal, or 0}

    def ranks(self):
        """{rank: process id} of what runs."""
        found = {}
        forked = []
        for process, variables in self._workspace.descendants().items():
            with contextlib.suppress(OSError):
                folder = Path("/proc") / str(process)
                if (folder / "exe").resolve().name != Path(self.process.args[0]).name:
                    continue
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if self._is_forked and parent == self.process.pid:
                    forked.append(process)
                elif not self._is_forked:
                    found[int(variables.get("LEVIN_RANK", 0))] = process
        return found or dict(enumerate(sorted(forked)))

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
        """The last checkpoint of the newest run that has one: a run that had nothing left to do saves nothing."""
        versions = sorted(self.root.glob("version_*"), key=lambda path: -int(path.name.split("_")[1]))
        folders = [version / "checkpoints/last" for version in versions] or [self.root / "version_0/checkpoints/last"]
        return next((folder for folder in folders if (folder / "manifest.json").exists()), folders[0])

    def wait_for(self, condition, seconds=LIMIT_SECONDS):
        """False when the job ended before, or took too long."""
        while not condition():
            self.reap()
            if self.process.returncode is not None or self.seconds() > seconds:
                return condition()
            time.sleep(0.002)
        return True


class Campaign:
    """Rounds of one strategy."""

    def __init__(self, workspace, training, strategy, ways, chance, mesh=MESH):
        self._mesh = mesh
        self._workspace = workspace
        self._training = training
        self._strategy = strategy
        self._ways = ways
        self._chance = chance
        self._number = 0
        self._verify = training.program.parent / "levin-checkpoint"
        self._weights = None
        self._whole_seconds = self._undisturbed()

    def _start(self, again=None, **options):
        if again is None:
            self._number += 1
        return Job(self._workspace, self._training, self._strategy, f"-{self._strategy}-{self._number}",
                   mesh=self._mesh, **options)

    def _undisturbed(self):
        job = self._start()
        support.wait_until(job.has_ended, f"a run with {self._strategy} ends")
        support.expect_equal(job.process.returncode, 0, f"the status of an undisturbed run\n{job.output()}\n")
        self._expect_whole(job, must_be_there=True)
        self._weights = self._weights_of(job)
        return job.seconds()

    @staticmethod
    def _weights_of(job):
        """What the last checkpoint holds of the model, whatever files it is in."""
        files = sorted(job.last().glob("model*.safetensors"))
        contents = []
        for file in files:
            content = file.read_bytes()
            size = int.from_bytes(content[:8], "little")
            contents.append(content[8 + size:])  # a sharded one's header has the token of its save
        if not contents:
            raise AssertionError(f"{job.last()} has no weights")
        return contents

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
        way = self._chance.choice(self._ways)
        if way == "killed":
            return self._killed()
        if way == "stopped":
            return self._stopped() if self._chance.random() < 0.5 else self._stopped_at_any_moment()
        return self._held_up(slowed=way == "slowed")

    def _finish(self, job, seconds, what):
        """Waits until nothing of a job runs, or it has taken too long."""
        began = time.monotonic()
        while not job.has_ended():
            if time.monotonic() - began > seconds:
                raise AssertionError(f"{what}: after {seconds} s these still run: {stacks(job.ranks())}")
            time.sleep(0.01)
        return time.monotonic() - began

    def _resume(self, job):
        """Starts a job again that did not end well, and returns a word on it."""
        family = self._strategy.split("_")[0]
        usual = usual_devices(self._strategy)
        devices = 3 if family in DIVIDE_ANEW and self._chance.random() < 0.3 else usual
        again = self._start(again=job, devices=devices)
        self._finish(again, LIMIT_SECONDS, "resumed")
        support.expect_equal(again.process.returncode, 0, f"the status of a resumed run\n{again.output()[-4000:]}\n")
        self._expect_whole(again, must_be_there=True)
        if devices == usual and self._weights_of(again) != self._weights:
            raise AssertionError("a resumed run ended with other weights than one that nobody disturbed")
        return f"resumed with {devices} ranks"

    def _held_up(self, slowed):
        """Stops a process for a while, once or again and again: nothing comes of it."""
        job = self._start()
        moment = self._await_moment(job)
        ranks = job.ranks()
        if not ranks:
            self._finish(job, LIMIT_SECONDS, "undisturbed")
            self._whole_seconds *= 0.9
            return None
        victim = self._chance.choice(sorted(ranks))
        times = 20 if slowed else 1
        for _ in range(times):
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[victim], signal.SIGSTOP)
                time.sleep(self._chance.uniform(0, 2 / times))
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[victim], signal.SIGCONT)
                if slowed:
                    time.sleep(0.02)
        what = f"rank {victim} {'slowed' if slowed else 'paused'}"
        try:
            took = self._finish(job, LIMIT_SECONDS, what)
            self._expect_no_crash(job)
            self._expect_nothing_left(job, ranks)
            support.expect_equal(job.process.returncode, 0, "the status")
            self._expect_whole(job, must_be_there=True)
            if self._weights_of(job) != self._weights:
                raise AssertionError("the weights are others than those of a run that nobody disturbed")
        except AssertionError as failure:
            raise AssertionError(f"{moment}, {what}: {failure}\n---- output\n{job.output()[-6000:]}") from None
        finally:
            subprocess.run(["rm", "-rf", job.root, job.temporary], check=False)
        return f"{moment}, {what}; ended well {took:.1f} s later"

    def _stopped(self):
        """Stops a process for good while it trains. Nobody can end rank 0, which started the others, but its user."""
        job = self._start(epochs=100_000)
        if not job.wait_for((job.last() / "manifest.json").exists):
            raise AssertionError(f"nothing was saved\n{job.output()[-6000:]}")
        time.sleep(self._chance.uniform(0, 0.5))
        ranks = job.ranks()
        victim = self._chance.choice(sorted(ranks))
        os.kill(ranks[victim], signal.SIGSTOP)
        what = f"rank {victim} stopped"
        try:
            began = time.monotonic()
            if ranks[victim] == job.process.pid:
                support.wait_until(lambda: job.reap() or set(self._workspace.descendants()) == {ranks[0]},
                                   "the other ranks have ended", LIMIT_SECONDS)
                os.kill(ranks[0], signal.SIGKILL)
            self._finish(job, LIMIT_SECONDS, what)
            took = time.monotonic() - began
            if job.process.returncode == 0:
                raise AssertionError("the job ended well")
            self._expect_no_crash(job)
            if ranks[victim] != job.process.pid:
                self._expect_nothing_left(job, ranks)
                support.expect_contains(job.output(), f"rank {victim} is gone: nothing was heard of it", "the output")
            self._expect_whole(job, must_be_there=True)
        except AssertionError as failure:
            raise AssertionError(f"{what}: {failure}\n---- output\n{job.output()[-6000:]}") from None
        finally:
            self._continue_and_remove(job, ranks)
        return f"{what}; all had ended {took:.1f} s later"

    @staticmethod
    def _continue_and_remove(job, ranks):
        for process in ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        subprocess.run(["rm", "-rf", job.root, job.temporary], check=False)

    def _stopped_at_any_moment(self):
        """Stops a process for good at a random moment, of those that another process started."""
        job = self._start()
        moment = self._await_moment(job)
        ranks = {rank: process for rank, process in job.ranks().items() if process != job.process.pid}
        what = "nothing"
        if ranks:
            victim = self._chance.choice(sorted(ranks))
            what = f"rank {victim} stopped"
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[victim], signal.SIGSTOP)
        try:
            took = self._finish(job, LIMIT_SECONDS, what)
            self._expect_no_crash(job)
            self._expect_nothing_left(job, ranks)
            self._expect_whole(job, must_be_there=job.process.returncode == 0)
            if not ranks:
                self._whole_seconds *= 0.9
                return None
            if job.process.returncode != 0:
                reasons = (f"rank {victim} is gone: nothing was heard of it",
                           f"rank {victim} was killed: it had been stopped for 12 s")
                if not any(reason in job.output() for reason in reasons):
                    raise AssertionError(f"nobody says that rank {victim} was stopped")
                result = self._resume(job)
            elif "go on without it" not in job.output() and self._weights_of(job) != self._weights:
                raise AssertionError("the weights are others than those of a run that nobody disturbed")
            else:
                result = "ended well"
        except AssertionError as failure:
            raise AssertionError(f"{moment}, {what}: {failure}\n---- output\n{job.output()[-6000:]}") from None
        finally:
            self._continue_and_remove(job, ranks)
        return f"{moment}, {what}; all had ended {took:.1f} s later; {result}"

    def _killed(self):
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
            resumed = self._resume(job) if job.process.returncode != 0 else "nothing to resume"
        except AssertionError as failure:
            raise AssertionError(f"{moment}, {what}: {failure}\n---- output\n{job.output()[-6000:]}") from None
        finally:
            subprocess.run(["rm", "-rf", job.root, job.temporary], check=False)
        words = [line for line in job.output().splitlines() if "[levin" in line or "error" in line]
        return (f"{moment}, {what}; ended {took:.1f} s later with status {job.process.returncode}: "
                f"{words[-1] if words else 'no word'}; {resumed}")

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
        # With one process there is nobody to notice that it is stopped.
        ways = [way for way in arguments.ways if way != "stopped" or not strategy.endswith("_threads")]
        campaign = Campaign(workspace, training, strategy, ways, random.Random(f"{strategy} {arguments.seed}"),
                            arguments.mesh)
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
    parser.add_argument("--mesh", default=MESH, help=f"of the strategy mesh, with four ranks; default: {MESH}")
    parser.add_argument("--ways", default=",".join(WAYS), type=lambda text: text.split(","),
                        help="what is done, one of them in each round")
    parser.add_argument("--rounds", type=int, default=5, help="of each strategy")
    parser.add_argument("--seed", default="0", help="another one, other moments")
    parser.add_argument("--keep-going", action="store_true", help="after a round that failed")
    arguments = parser.parse_args()
    if unknown := [way for way in arguments.ways if way not in WAYS]:
        parser.error(f"--ways: got {', '.join(unknown)}; valid: {', '.join(WAYS)}")
    try:
        with support.Workspace(seconds=100 + 55 * arguments.rounds) as workspace:
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
