#!/usr/bin/env python3
"""The examples in C and Fortran: each trains, saves, ends, and goes on to the bit. The page's programs in C compile.

    programs_test.py c_simulation | heat_equation | heat_equation_errors | page
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
SKIPPED = 77


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def program(name):
    path = Path(os.environ["LEVIN_BINARY_DIR"]) / "bin" / name
    if not path.exists():
        skip(f"{name} is not built; hint: its language's compiler (gfortran and libopenmpi-dev for heat_equation)")
    return str(path)


def mpirun():
    """The words that start two ranks, which leave the cores to each other when they wait."""
    found = shutil.which("mpirun") or skip("there is no mpirun; hint: apt-get install openmpi-bin")
    words = [found, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", "2"]
    return [*words, "--allow-run-as-root"] if os.geteuid() == 0 else words


def run(words, folder, status=0):
    """Runs to the end, and returns what was written."""
    ended = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
                           check=False)
    print(ended.stdout, flush=True)
    if (ended.returncode == 0) != (status == 0):
        sys.exit(f"failed: {' '.join(map(str, words))} ended with status {ended.returncode}")
    return ended.stdout


def expect(is_so, what):
    if not is_so:
        sys.exit(f"failed: {what}")


def goes_on(start, folder, first, whole):
    """Compares a run to `whole` with one to `first` that goes on to `whole`, and returns the lines of that."""
    straight = run([*start, "straight", whole], folder).splitlines()[1:]
    run([*start, "parts", first], folder)
    parts = run([*start, "parts", whole], folder).splitlines()
    expect(parts[0].endswith(f" {first}"), f"the second run goes on from {first}")
    expect(parts[1:] == straight, "a run in two parts ends as one that was not interrupted")
    weights = [(Path(folder) / name / "model.safetensors").read_bytes() for name in ("straight", "parts")]
    expect(weights[0] == weights[1], "weights are the same to the bit")
    return straight


def c_simulation(folder):
    start = [program("c_simulation"), SOURCE / "examples/c_simulation/engine.yaml"]
    lines = goes_on(start, folder, "400", "1000")
    expect(float(lines[0].split("loss ")[1]) < 0.01, "the pendulum's model is trained")


def heat_equation(folder):
    start = [*mpirun(), program("heat_equation"), SOURCE / "examples/heat_equation/engine.yaml"]
    lines = goes_on(start, folder, "20", "40")
    loss, deviation = map(float, re.search(r"loss +(\S+), deviation +(\S+)$", lines[0]).groups())
    expect(loss < 2e-5, "the surrogate is trained")  # 1.4e-6 is reached
    expect(deviation < 0.15, "the surrogate takes the place of the simulation")  # 0.033 is reached


def heat_equation_errors(folder):
    """What is wrong ends the program, on all ranks, with one message each at most."""
    start = [*mpirun(), program("heat_equation")]
    output = run([*start, "/nowhere/engine.yaml", "rod", "1"], folder, status=1)
    expect("/nowhere/engine.yaml" in output, "the message names the file")
    wrong = Path(folder) / "wrong.yaml"
    wrong.write_text("engine: {model: {name: mlp, layers: [5, 1]}, loss: mse}\ntrainer: {accelerator: cpu, logger: false}\n")
    output = run([*start, wrong, "rod", "1"], folder, status=1)
    expect("inputs[0].shape does not fit the model mlp; got [64, 9]; valid: [examples, 5]" in output,
           "the message says which array is wrong")


def page(folder):
    """C11 without a warning: the program in the page, and with it the header."""
    blocks = re.findall(r"^```c\n(.*?)^```$", (SOURCE / "docs/simulations.md").read_text(), re.DOTALL | re.MULTILINE)
    expect(blocks, "the page has programs in C")
    for number, block in enumerate(blocks):
        program_file = Path(folder) / f"block{number}.c"
        program_file.write_text(block)
        for compiler in filter(shutil.which, ("cc", "clang-19")):
            run([compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{SOURCE}/include",
                 program_file], folder)


def main():
    with tempfile.TemporaryDirectory(prefix="levin_c_") as folder:
        {"c_simulation": c_simulation, "heat_equation": heat_equation,
         "heat_equation_errors": heat_equation_errors, "page": page}[sys.argv[1]](folder)
    print("passed")


if __name__ == "__main__":
    main()
