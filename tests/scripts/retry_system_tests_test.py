#!/usr/bin/env python3
"""Checks what scripts/retry-system-tests repeats and what it makes of it, on small trees of tests."""

import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "retry-system-tests"

# Fails when it runs for the first time.
ONCE = "test -e {name} || {{ touch {name}; exit 1; }}"


class Retry(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)

    def run_tests(self, **tests):
        """Each is a shell command and its labels."""
        lines = []
        for name, (command, labels) in tests.items():
            lines.append(f"add_test([==[a.{name}]==] sh -c [==[{command.format(name=name)}]==])")
            lines.append(f"set_tests_properties([==[a.{name}]==] PROPERTIES LABELS [==[{labels}]==])")
        (self.build / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return subprocess.run(["ctest", "--test-dir", self.build], capture_output=True, check=False).returncode

    def retry(self):
        return subprocess.run([SCRIPT, self.build], capture_output=True, text=True, check=False)

    def unstable(self):
        file = self.build / "unstable.txt"
        return file.read_text(encoding="utf-8").split() if file.exists() else []

    def test_an_unstable_system_test_is_named_and_green(self):
        self.assertNotEqual(self.run_tests(once=(ONCE, "tools;system"), good=("true", "unit")), 0)
        said = self.retry()
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        self.assertEqual(self.unstable(), ["a.once"])
        self.assertNotIn("a.good", said.stdout)

    def test_names_are_added(self):
        for name in ("first", "second"):
            self.run_tests(**{name: (ONCE, "system")})
            self.assertEqual(self.retry().returncode, 0)
        self.assertEqual(self.unstable(), ["a.first", "a.second"])

    def test_a_test_that_fails_again_is_red(self):
        self.run_tests(once=(ONCE, "system"), never=("false", "system"))
        self.assertNotEqual(self.retry().returncode, 0)
        self.assertEqual(self.unstable(), [])

    def test_unit_tests_are_not_repeated(self):
        self.run_tests(once=(ONCE, "unit"), other=(ONCE, "system"))
        said = self.retry()
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("'system': a.once", said.stderr)
        self.assertFalse((self.build / "unstable.txt").exists())

    def test_a_name_is_no_pattern(self):
        self.run_tests(**{"once+": (ONCE, "system"), "onceonce": ("false", "unit;excluded")})
        self.assertNotEqual(self.retry().returncode, 0)
        subprocess.run(["ctest", "--test-dir", self.build, "-L", "system"], capture_output=True, check=False)
        (self.build / "once+").unlink()
        subprocess.run(["ctest", "--test-dir", self.build, "-L", "system"], capture_output=True, check=False)
        self.assertEqual(self.retry().returncode, 0)
        self.assertEqual(self.unstable(), ["a.once+"])

    def test_without_a_failed_test_there_is_nothing_to_repeat(self):
        self.run_tests(good=("true", "system"))
        said = self.retry()
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("ctest did not run", said.stderr)


if __name__ == "__main__":
    unittest.main()
