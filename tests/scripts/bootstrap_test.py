#!/usr/bin/env python3
"""Checks that trees which share Python environments do not need each other, with a package made here."""

import os
import shutil
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def make_wheel(folder):
    """A package with a program, `greet`."""
    wheel = folder / "greeting-1.0-py3-none-any.whl"
    files = {
        "greeting.py": "def main():\n    print('hello')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, "greeting-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, "greeting-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return wheel


class SharedEnvironments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.wheel = make_wheel(self.folder)

    def bootstrap(self, name):
        """Runs scripts/bootstrap in a tree of this name that needs no system packages; gives the tree."""
        tree = self.folder / name
        (tree / "scripts").mkdir(parents=True)
        shutil.copy(SCRIPTS / "bootstrap", tree / "scripts")
        (tree / "scripts/system-packages.txt").write_text("# none\n", encoding="utf-8")
        (tree / "scripts/requirements.txt").write_text(f"{self.wheel.as_uri()}\n", encoding="utf-8")
        environment = {**os.environ, "LEVIN_ENVIRONMENTS": str(self.folder / "shared"), "LEVIN_LIBTORCH": "/none"}
        said = subprocess.run([tree / "scripts/bootstrap"], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        return tree

    def test_programs_run_when_the_tree_that_made_them_is_gone(self):
        first = self.bootstrap("first")
        environment = (first / ".deps/venv").resolve()
        self.assertTrue(environment.is_relative_to(self.folder / "shared"))
        shutil.rmtree(first)

        second = self.bootstrap("second")
        self.assertEqual((second / ".deps/venv").resolve(), environment)
        said = subprocess.run([second / ".deps/venv/bin/greet"], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout, "hello\n")


if __name__ == "__main__":
    unittest.main()
