"""Trains with a folder for runs, a home or a temporary folder that cannot be written: read-only, full, without inodes, on
another file system, owned by others, as root and as a user who is not.

    bad_folders.py [--only run_full] [--list]

Every try ends, either well and with a whole last checkpoint, or with a status other than 0 and one message of the
project's form; where the folder for runs cannot be written it is the latter. Whatever was saved before stays whole, and
with room again `--ckpt=auto` goes on from it to the weights of a run that nobody disturbed."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))
import support  # noqa: E402  pylint: disable=wrong-import-position

LIMIT_SECONDS = 120  # only a hang takes so long
NOBODY = 65534
PRIVATE = "LEVIN_TEST_PRIVATE_MOUNTS"
MESSAGE = re.compile(r"^error: \[[a-z_]+\] .+", re.MULTILINE)
CRASH_WORDS = re.compile(r"terminate called|Segmentation fault|AddressSanitizer|ThreadSanitizer|frame #\d+|core dumped")
HALF = 3_000_000  # bytes of a file system that has room for some of a run's checkpoints

# Which folder, what it is, as whom, and what must come of it: `fails`, `ends well`, or `either`.
CASES = {
    "run_read_only": ("run", "read_only", "root", "fails"),
    "run_full": ("run", "full", "root", "fails"),
    "run_fills_up": ("run", "fills_up", "root", "fails"),
    "run_without_inodes": ("run", "no_inodes", "root", "fails"),
    "run_runs_out_of_inodes": ("run", "few_inodes", "root", "fails"),
    "run_on_another_file_system": ("run", "other", "root", "ends well"),
    "run_owned_by_others": ("run", "foreign", "nobody", "fails"),
    "run_of_nobody_as_root": ("run", "of_nobody", "root", "ends well"),
    "run_of_nobody": ("run", "of_nobody", "nobody", "ends well"),
    "run_is_a_file": ("run", "file", "root", "fails"),
    "home_read_only": ("home", "read_only", "root", "ends well"),
    "home_full": ("home", "full", "root", "ends well"),
    "home_without_inodes": ("home", "no_inodes", "root", "ends well"),
    "home_owned_by_others": ("home", "foreign", "nobody", "ends well"),
    "home_is_missing": ("home", "missing", "nobody", "ends well"),
    "temporary_read_only": ("temporary", "read_only", "root", "either"),
    "temporary_full": ("temporary", "full", "root", "either"),
    "temporary_without_inodes": ("temporary", "no_inodes", "root", "either"),
    "temporary_on_another_file_system": ("temporary", "other", "root", "ends well"),
    "temporary_owned_by_others": ("temporary", "foreign", "nobody", "either"),
    "temporary_is_missing": ("temporary", "missing", "root", "either"),
}


def mount(workspace, path, options, then=()):
    """A file system in memory at `path`; `then` are options that it gets once it is there."""
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path], capture_output=True, text=True,
                            check=False)
    if result.returncode != 0:
        raise support.Skip(f"nothing can be mounted here: {result.stderr.strip()}")
    workspace.defer(unmount, path)
    if then:
        subprocess.run(["mount", "-o", f"remount,{then}", str(path)], check=True)


def unmount(path):
    if path.is_mount():
        subprocess.run(["umount", "--lazy", str(path)], check=False)


def make_folder(workspace, path, kind):
    """Makes the folder `path` what `kind` says."""
    if kind == "missing":
        return
    if kind == "file":
        path.write_text("")
        return
    path.mkdir()
    if kind == "read_only":
        mount(workspace, path, "size=64m", "ro")
    elif kind == "full":
        mount(workspace, path, "size=64k")
        (path / "filler").write_bytes(bytes(64 << 10))
    elif kind == "fills_up":
        mount(workspace, path, f"size={HALF}")
    elif kind == "no_inodes":
        mount(workspace, path, "size=64m,nr_inodes=1")
    elif kind == "few_inodes":
        mount(workspace, path, "size=64m,nr_inodes=24")
    elif kind == "other":
        mount(workspace, path, "size=256m")
    elif kind == "of_nobody":
        os.chown(path, NOBODY, NOBODY)
    elif kind != "foreign":
        raise ValueError(kind)


class Folders:
    """The three folders of one try."""

    def __init__(self, workspace, name, which, kind, user):
        self.root = workspace.folder / name
        self.root.mkdir()
        self.paths = {each: self.root / each for each in ("run", "home", "temporary")}
        for each, path in self.paths.items():
            make_folder(workspace, path, kind if each == which else "of_nobody" if user == "nobody" else "other")

    def environment(self):
        return {"HOME": str(self.paths["home"]), "TMPDIR": str(self.paths["temporary"]),
                "XDG_CACHE_HOME": ""}


def attempt(workspace, training, name, folders, user):
    """Runs a training to its end; returns its status and what it wrote. Two forks need a temporary folder: /dev/shm is
    small here."""
    words = training.words(f"{name}/run", 2, more=[
        "--trainer.strategy=ddp_spawn", "--trainer.max_epochs=2", "--ckpt=auto", "--data.num_workers=0",
        "--trainer.logger=[csv, tensorboard]",
        "--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 4, save_top_k: -1, save_last: true}}]"])
    if user == "nobody":
        words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]
    process = workspace.start(f"{name}-output", words, folders.environment())
    try:
        status = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it still runs after {LIMIT_SECONDS} s") from None
    return status, process.log.read_text(errors="replace")


def checkpoints(folder):
    return [manifest.parent for manifest in sorted(folder.glob("version_*/checkpoints/*/manifest.json"))
            if not manifest.parent.name.startswith(".")]


def expect_whole(verify, folder):
    for checkpoint in checkpoints(folder):
        result = subprocess.run([verify, "verify", checkpoint], capture_output=True, text=True, check=False)
        support.expect_equal(result.returncode, 0, f"verify {checkpoint}: {result.stdout}{result.stderr}")


def weights(folder):
    last = [path for path in checkpoints(folder) if path.name == "last"]
    if not last:
        raise AssertionError("there is no last checkpoint")
    newest = max(last, key=lambda path: int(path.parts[-3].split("_")[1]))
    return (newest / "model.safetensors").read_bytes()


def try_one(workspace, training, name, expected):
    """Returns a line on what came of it."""
    which, kind, user, outcome = CASES[name]
    folders = Folders(workspace, name, which, kind, user)
    verify = training.program.parent / "levin-checkpoint"
    run_folder = folders.paths["run"]
    status, output = attempt(workspace, training, name, folders, user)
    try:
        if found := CRASH_WORDS.search(output):
            raise AssertionError(f"something crashed: {found.group()!r}")
        if status < 0:
            raise AssertionError(f"it was ended by signal {-status}")
        messages = MESSAGE.findall(output)
        if status == 0:
            if outcome == "fails":
                raise AssertionError("it ended well")
            support.expect_equal(weights(run_folder), expected, "the weights")
        elif outcome == "ends well":
            raise AssertionError(f"it ended with status {status}")
        elif len(messages) != 1:
            raise AssertionError(f"it ended with {len(messages)} messages of the project's form")
        saved = 0
        if run_folder.is_dir():
            expect_whole(verify, run_folder)
            saved = len(checkpoints(run_folder))
        if kind in ("fills_up", "few_inodes"):
            if saved == 0:
                raise AssertionError("nothing was saved before, so that nothing was there to be lost")
            subprocess.run(["mount", "-o", "remount,size=256m,nr_inodes=0", str(run_folder)], check=True)
            again, more = attempt(workspace, training, name, folders, user)
            output += more
            support.expect_equal(again, 0, "the status once there was room")
            expect_whole(verify, run_folder)
            support.expect_equal(weights(run_folder), expected, "the weights once there was room")
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n---- output\n{output[-4000:]}") from None
    finally:
        for path in folders.paths.values():
            unmount(path)
        shutil.rmtree(folders.root, ignore_errors=True)
    return f"status {status}: {messages[0] if messages else 'ended well'}; {saved} checkpoints"


def run(arguments, workspace):
    training = support.Training(workspace)
    mount(workspace, Path("/dev/shm"), "size=64m")
    for path in (workspace.folder / "data", workspace.folder):
        path.chmod(0o755)
    reference = Folders(workspace, "reference", "run", "other", "root")
    status, output = attempt(workspace, training, "reference", reference, "root")
    support.expect_equal(status, 0, f"the status of an undisturbed run\n{output[-4000:]}\n")
    expected = weights(reference.paths["run"])
    failures = 0
    for name in arguments.only or CASES:
        try:
            print(f"{name}: {try_one(workspace, training, name, expected)}", flush=True)
        except AssertionError as failure:
            failures += 1
            print(f"{name}: FAILED {failure}", flush=True)
    print(f"{failures} tries failed" if failures else "passed")
    return 1 if failures else 0


def enter_private_mounts():
    """Starts this script again where its mounts are its own, and go when it does."""
    if PRIVATE in os.environ:
        return
    support.require_root("mount file systems")
    unshare = support.find_program("unshare")
    if subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode != 0:
        raise support.Skip("mount namespaces cannot be made here")
    os.environ[PRIVATE] = "1"
    os.execv(unshare, [unshare, "-m", sys.executable, "-B", *sys.argv])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of tries")
    parser.add_argument("--list", action="store_true", help="prints the names of all tries")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(CASES))
        return 0
    if unknown := [name for name in arguments.only or () if name not in CASES]:
        parser.error(f"--only: got {', '.join(unknown)}; valid: {', '.join(CASES)}")
    try:
        enter_private_mounts()
        with support.Workspace(seconds=60 + 60 * len(arguments.only or CASES)) as workspace:
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
