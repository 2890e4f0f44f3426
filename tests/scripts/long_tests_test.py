#!/usr/bin/env python3
"""Checks which part of the tests scripts/long-tests takes on which day."""

import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "long-tests"
BUILD = Path(os.environ.get("LEVIN_BINARY_DIR", ROOT / "build"))


def run(*arguments):
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "LEVIN_BUILD": str(BUILD)})


def part_of(day):
    said = run("--print", "--day", str(day))
    found = re.fullmatch(r"long-tests: day (\d+): (.+)\n", said.stdout)
    assert said.returncode == 0 and found and int(found[1]) == day, said
    return found[2]


def groups():
    said = subprocess.run(["ctest", "--test-dir", BUILD, "--print-labels"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^ *(long:\S+)$", said.stdout, re.M))


class Rotation(unittest.TestCase):
    def test_every_part_has_its_day(self):
        with_tests = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/*_test.cpp")}
        left = set(re.search(r"^left_to_all=\((.*)\)$", SCRIPT.read_text(encoding="utf-8"), re.M)[1].split())
        self.assertLessEqual(left, with_tests)
        folders = with_tests - left - {"allocation"}
        days = 6 * len(folders)
        parts = [part_of(day) for day in range(days)]
        self.assertLessEqual(groups(), set(parts[0::2]))
        self.assertEqual(set(parts[1::2]), {f"preset {preset}, tests/{folder}" for preset in ("asan", "tsan")
                                            for folder in folders} | {"preset fuzz, all targets"})

    def test_all_parts(self):
        said = run("--print", "--all")
        self.assertEqual(said.returncode, 0, said.stderr)
        parts = re.findall(r"^long-tests: all: (.+)$", said.stdout, re.M)
        self.assertEqual(len(parts), len(set(parts)))
        self.assertLessEqual(groups(), set(parts))
        for part in ("preset asan, tests/strategies", "preset tsan, tests/data", "preset fuzz, all targets"):
            self.assertIn(part, parts)

    def test_today_is_a_day(self):
        self.assertRegex(run("--print").stdout, r"^long-tests: day \d{5}: ")

    def test_bad_arguments_are_explained(self):
        for arguments in (["--day", "tomorrow"], ["--day", "-1"], ["--day"], ["--days"], ["asan"]):
            said = run("--print", *arguments)
            self.assertEqual(said.returncode, 2, arguments)
            self.assertRegex(said.stderr, r"^long-tests: .*valid: ")


if __name__ == "__main__":
    unittest.main()
