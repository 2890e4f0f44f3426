#!/usr/bin/env python3
"""Shows that locks.py catches each kind of violation, and accepts what is right."""

import tempfile
import unittest
from pathlib import Path

import locks


class LocksTest(unittest.TestCase):
    def violations(self, path, text, may_be_unchecked=(), guards_no_variable=()):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / path).parent.mkdir(parents=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
            return list(locks.violations(Path(folder), may_be_unchecked, guards_no_variable))

    def test_guarded_member_is_accepted(self):
        text = "  mutable Mutex mutex_;  // not std::mutex\n  int64_t count_ LEVIN_GUARDED_BY(mutex_) = 0;\n"
        self.assertEqual(self.violations("core/nn/a.h", text), [])

    def test_lock_that_only_functions_require_is_accepted(self):
        self.assertEqual(self.violations("core/nn/a.cpp", "Mutex mutex;\nvoid f() LEVIN_REQUIRES(mutex) {}\n"), [])

    def test_unchecked_locks(self):
        for name in ("std::mutex", "std::recursive_mutex", "std::shared_mutex", "std::condition_variable", "pthread_mutex_t"):
            found = self.violations("loggers/a.cpp", f"{name} lock;\n")
            self.assertEqual(found, [f"loggers/a.cpp:1: {name} is not checked by the compiler; valid: what core/base/mutex.h has"])

    def test_the_header_itself(self):
        self.assertEqual(self.violations("core/base/mutex.h", "std::mutex mutex_;\n"), [])

    def test_unchecked_lock_with_a_reason(self):
        for place in ("core/data/a.h", "core/data/"):
            self.assertEqual(self.violations("core/data/a.h", "std::mutex mutex_;\n", {place: "why"}), [])

    def test_lock_that_guards_nothing(self):
        text = "Mutex first LEVIN_ACQUIRED_BEFORE(second);\nint count LEVIN_GUARDED_BY(second);\nMutex second;\n"
        self.assertEqual(self.violations("core/nn/a.h", text), ["core/nn/a.h:1: no LEVIN_GUARDED_BY says what first guards"])
        self.assertEqual(self.violations("core/nn/a.h", text, {}, {("core/nn/a.h", "first"): "why"}), [])

    def test_reason_that_has_become_stale(self):
        found = self.violations("core/nn/a.h", "", {"core/data/": "why"}, {("core/nn/a.h", "mutex_"): "why"})
        self.assertEqual(len(found), 2)
        self.assertIn("core/data/, which is none any more", "\n".join(found))


if __name__ == "__main__":
    unittest.main()
