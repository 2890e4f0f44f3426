#!/usr/bin/env python3
"""Shows that clang refuses programs that use what core/base/mutex.h guards without its lock, and accepts those that do not.

    thread_safety_test.py COMPILER [FLAG...]

Exits with 77 where the compiler is not clang, which alone has this analysis.
"""

import subprocess
import sys
import unittest

COUNTER = """
#include <levin/core/base/mutex.h>

class Counter {
 public:
  int value();

 private:
  int unchecked_value() const LEVIN_REQUIRES(mutex_) { return value_; }
  void call_back() LEVIN_EXCLUDES(mutex_) {}

  levin::Mutex mutex_;
  levin::ConditionVariable changed_;
  int value_ LEVIN_GUARDED_BY(mutex_) = 0;
};

int Counter::value() {
%s
}
"""


class ThreadSafetyTest(unittest.TestCase):
    command = []

    def messages(self, body):
        command = [*self.command, "-Wthread-safety", "-Werror", "-fsyntax-only", "-x", "c++", "-"]
        finished = subprocess.run(command, input=COUNTER % body, capture_output=True, text=True, check=False)
        self.assertEqual(finished.returncode == 0, finished.stderr == "", finished.stderr)
        return finished.stderr

    def assert_accepted(self, body):
        self.assertEqual(self.messages(body), "")

    def assert_refused(self, body, words):
        self.assertIn(words, self.messages(body))

    def test_member_with_its_lock(self):
        self.assert_accepted("const levin::MutexLock lock(mutex_); return value_;")

    def test_member_without_its_lock(self):
        self.assert_refused("return value_;", "reading variable 'value_' requires holding mutex 'mutex_'")
        self.assert_refused("value_ = 1; return 1;", "writing variable 'value_' requires holding mutex 'mutex_'")

    def test_after_the_scope_of_the_lock(self):
        self.assert_refused("{ const levin::MutexLock lock(mutex_); } return value_;", "reading variable 'value_'")

    def test_lock_that_was_given_up(self):
        self.assert_refused("levin::MutexLock lock(mutex_); lock.unlock(); return value_;", "reading variable 'value_'")
        self.assert_accepted("levin::MutexLock lock(mutex_); lock.unlock(); lock.lock(); return value_;")

    def test_lock_that_is_held_already(self):
        self.assert_refused("const levin::MutexLock lock(mutex_); const levin::MutexLock again(mutex_); return 0;",
                            "acquiring mutex 'mutex_' that is already held")

    def test_lock_on_some_ways_only(self):
        self.assert_refused("const bool held = mutex_.try_lock(); return value_;", "mutex 'mutex_'")
        self.assert_accepted(
            "if (!mutex_.try_lock()) return 0; const levin::MutexLock lock(mutex_, std::adopt_lock); return value_;")

    def test_function_that_requires_the_lock(self):
        self.assert_accepted("const levin::MutexLock lock(mutex_); return unchecked_value();")
        self.assert_refused("return unchecked_value();", "calling function 'unchecked_value' requires holding mutex 'mutex_'")

    def test_function_that_must_not_have_the_lock(self):
        self.assert_refused("const levin::MutexLock lock(mutex_); call_back(); return 0;",
                            "cannot call function 'call_back' while mutex 'mutex_' is held")

    def test_condition(self):
        wait = "levin::MutexLock lock(mutex_); changed_.wait(lock, [this]()%s { return value_ > 0; }); return value_;"
        self.assert_accepted(wait % " LEVIN_REQUIRES(mutex_)")
        self.assert_refused(wait % "", "reading variable 'value_'")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ThreadSafetyTest.command = sys.argv[1:]
    version = subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True, check=False)
    if version.returncode != 0 or "clang" not in version.stdout:
        print(f"{sys.argv[1]} is not clang")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
