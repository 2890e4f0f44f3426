#!/usr/bin/env python3
"""Checks which part of the tests scripts/sanitized-part takes on which day."""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "sanitized-part"


def run(*arguments):
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)


def part_of(day):
    said = run("--print", "--day", str(day))
    found = re.fullmatch(r"sanitized-part: day (\d+): preset (\w+), (.+)\n", said.stdout)
    assert said.returncode == 0 and found and int(found[1]) == day, said
    return found[2], found[3]


class Rotation(unittest.TestCase):
    def test_all_folders_come_under_both_presets(self):
        with_tests = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/*_test.cpp")}
        left_out = set(re.search(r"^left_out=\((.*)\)$", SCRIPT.read_text(encoding="utf-8"), re.M)[1].split())
        self.assertLessEqual(left_out, with_tests)
        wanted = {f"tests/{folder}" for folder in with_tests - left_out}
        days = 3 * len(wanted)
        parts = [part_of(day) for day in range(days)]
        self.assertEqual({part for preset, part in parts if preset == "asan"}, wanted)
        self.assertEqual({part for preset, part in parts if preset == "tsan"}, wanted)
        self.assertEqual(parts.count(("fuzz", "all targets")), days // 3)
        self.assertEqual(part_of(days), parts[0])

    def test_today_is_a_day(self):
        self.assertRegex(run("--print").stdout, r"^sanitized-part: day \d{5}: preset ")

    def test_presets_are_there(self):
        presets = (ROOT / "CMakePresets.json").read_text(encoding="utf-8")
        for day in range(3):
            self.assertIn(f'"name": "{part_of(day)[0]}"', presets)

    def test_bad_arguments_are_explained(self):
        for arguments in (["--day", "tomorrow"], ["--day", "-1"], ["--day"], ["--days"], ["asan"]):
            said = run("--print", *arguments)
            self.assertEqual(said.returncode, 2, arguments)
            self.assertRegex(said.stderr, r"^sanitized-part: .*valid: ")


if __name__ == "__main__":
    unittest.main()
