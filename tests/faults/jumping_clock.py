"""Trains while the time of day is set back and forth, by up to a day, five times a second: nothing hangs or dies, and the
weights are those of a run whose clock nobody touched.

    jumping_clock.py [--epochs 2] [--strategy auto,ddp,...]

The clock is a library for LD_PRELOAD (jumping_clock.cpp), which LEVIN_JUMPING_CLOCK names."""

import argparse
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))
import support  # noqa: E402  pylint: disable=wrong-import-position

STRATEGIES = ("auto", "ddp", "ddp_threads", "ddp_spawn", "sharded", "pipeline", "parameter_server")
LIMIT_SECONDS = 120  # only a hang takes so long


def train(workspace, training, strategy, clock, epochs):
    """Returns the weights that a run ends with."""
    name = f"{strategy}-{'jumping' if clock else 'still'}"
    devices = 1 if strategy == "auto" else 2
    if strategy == "pipeline":  # it is else cut by measured times, and with it the files of a checkpoint
        strategy = "{pipeline: {balance_by: parameters}}"
    words = training.words(name, devices, more=[
        f"--trainer.strategy={strategy}", f"--trainer.max_epochs={epochs}", "--trainer.max_time=00:01:00:00",
        "--trainer.logger=[csv, tensorboard]", "--data.num_workers=1",
        "--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 4, save_last: true}}]"])
    output = workspace.run(name, words, {"LD_PRELOAD": str(clock)} if clock else {}, seconds=LIMIT_SECONDS)
    if "is gone" in output or "hangs" in output:
        raise AssertionError(f"{name}: a rank was missed: {output[-3000:]}")
    files = sorted((training.versions(name)[-1] / "checkpoints/last").glob("model*.safetensors"))
    if not files:
        raise AssertionError(f"{name} saved no weights")
    contents = [file.read_bytes() for file in files]
    # The header of a sharded one has the token of its save.
    return [content[8 + int.from_bytes(content[:8], "little"):] for content in contents]


def run(arguments, workspace):
    default = Path(os.environ.get("LEVIN_BINARY_DIR", support.SOURCE / "build")) / "tests/libjumping_clock.so"
    clock = Path(os.environ.get("LEVIN_JUMPING_CLOCK", default))
    if not clock.exists():
        raise support.Skip(f"there is no {clock}; hint: build the target jumping_clock")
    training = support.Training(workspace)
    for strategy in arguments.strategy:
        still = train(workspace, training, strategy, None, arguments.epochs)
        jumping = train(workspace, training, strategy, clock, arguments.epochs)
        if jumping != still:
            raise AssertionError(f"{strategy}: the weights are others than with a clock that nobody touched")
        print(f"{strategy}: the same weights", flush=True)
    print("passed")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--strategy", default=",".join(STRATEGIES), type=lambda text: text.split(","))
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    try:
        with support.Workspace(seconds=30 + 2 * LIMIT_SECONDS * len(arguments.strategy)) as workspace:
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
