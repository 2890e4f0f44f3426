#!/usr/bin/env python3
"""Shows that include_direction.py catches each kind of violation, and accepts what is right."""

import tempfile
import unittest
from pathlib import Path

import include_direction


class IncludeDirectionTest(unittest.TestCase):
    def found_in(self, files, check):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding="utf-8")
            return list(check(root))

    def violations(self, files):
        return self.found_in(files, include_direction.violations)

    def cycle_violations(self, files, allowed):
        return self.found_in(files, lambda root: include_direction.check_cycles(root, allowed))

    def assert_accepted(self, files):
        self.assertEqual(self.violations(files), [])

    def assert_refused(self, path, text, words):
        found = self.violations({path: text})
        self.assertTrue(any(words in line for line in found), f"{words!r} not in {found}")

    def test_downward_includes_are_accepted(self):
        self.assert_accepted(
            {
                "core/data/batch.h": "#include <levin/core/base/error.h>\n#include <vector>\n",
                "core/data/batch.cpp": "#include <levin/core/data/batch.h>\n\n#include <torch/torch.h>\n",
                "core/trainer/trainer.h": "#include <levin/core/interfaces/module.h>\n",
                "callbacks/timer.h": "#include <levin/core/interfaces/callback.h>\n",
                "callbacks/timer.cpp": "#include <levin/callbacks/timer.h>\n#include <levin/core/trainer/trainer.h>\n",
                "loggers/csv_logger.h": "#include <levin/core/interfaces/logger.h>\n",
                "core/builtins.h": "",
                "core/builtins.cpp": "#include <levin/core/builtins.h>\n#include <levin/callbacks/timer.h>\n",
                "core/levin.h": "#include <torch/torch.h>\n#include <levin/core/trainer/trainer.h>\n",
                "examples/mnist/main.cpp": "#include <levin/levin.h>\n#include <torch/torch.h>\n",
            }
        )

    def test_upward_include(self):
        self.assert_refused("core/base/a.h", "#include <levin/core/data/batch.h>", "core/base must not include core/data")

    def test_cuda_is_known_to_its_accelerator_only(self):
        self.assert_refused("core/nn/a.h", "bool b = tensor.is_cuda();", "only core/accelerators knows CUDA")
        self.assert_refused("callbacks/a.h", "#include <c10/cuda/CUDAStream.h>", "only core/accelerators knows CUDA")
        for code in ("at::hasCUDA()", "c10::cuda::current_device()", "c10::DeviceType::CUDA", 'name == "cuda"', 'find("cuda")'):
            self.assert_refused("core/nn/a.h", f"auto b = {code};", "only core/accelerators knows CUDA")
        self.assert_accepted({"core/accelerators/a.h": "bool b = tensor.is_cuda();", "core/nn/a.h": "// unlike is_cuda()"})

    def test_middle_folders_stay_apart(self):
        self.assert_refused("core/optim/a.h", "#include <levin/core/nn/unit.h>", "core/optim must not include core/nn")

    def test_plug_ins_stay_apart(self):
        self.assert_refused("callbacks/a.h", "#include <levin/strategies/ddp.h>", "callbacks must not include strategies")

    def test_core_knows_no_plug_in(self):
        self.assert_refused("core/trainer/a.h", "#include <levin/loggers/csv_logger.h>", "must not include loggers")

    def test_trainer_stays_out_of_callback_headers(self):
        self.assert_refused("callbacks/a.h", "#include <levin/core/trainer/trainer.h>", "must not include core/trainer")

    def test_loggers_see_one_interface(self):
        self.assert_refused("loggers/a.h", "#include <levin/core/interfaces/module.h>", "must not include core/interfaces")

    def test_umbrella_header_is_for_users(self):
        self.assert_refused("core/data/a.h", "#include <levin/levin.h>", "must not include core/levin.h")

    def test_torch_umbrella_in_a_header(self):
        self.assert_refused("core/nn/a.h", "#include <torch/torch.h>", "stays out of headers")

    def test_quoted_include(self):
        self.assert_refused("core/nn/a.h", '#include "core/base/error.h"', "included as <levin/...>")

    def test_unknown_layer(self):
        self.assert_refused("core/extra/a.h", "#include <levin/core/base/error.h>", "not in this script's table")

    def test_source_without_header(self):
        self.assert_refused("core/nn/a.cpp", "#include <vector>", "has no header core/nn/a.h")

    def test_own_header_first(self):
        found = self.violations(
            {"core/nn/a.h": "", "core/nn/a.cpp": "#include <levin/core/base/error.h>\n#include <levin/core/nn/a.h>\n"}
        )
        self.assertIn("includes its own header", found[0])

    def test_users_include_the_umbrella(self):
        self.assert_refused("examples/x/main.cpp", "#include <levin/core/nn/unit.h>", "levin/levin.h only")
        self.assert_refused("tests/integration/a.cpp", "#include <levin/core/nn/unit.h>", "levin/levin.h only")

    # A source that includes the other's header is enough: a header and its source are one.
    TWO = {
        "core/nn/a.h": "",
        "core/nn/a.cpp": "#include <levin/core/nn/a.h>\n#include <levin/core/nn/b.h>\n",
        "core/nn/b.h": "#include <levin/core/nn/a.h>\n",
    }
    THREE = {
        "core/nn/a.h": "#include <levin/core/nn/b.h>\n",
        "core/nn/b.h": "",
        "core/nn/b.cpp": "#include <levin/core/nn/b.h>\n#include <levin/core/nn/c.h>\n",
        "core/nn/c.h": "#include <levin/core/nn/a.h>\n",
        "core/nn/user.h": "#include <levin/core/nn/a.h>\n",
    }

    def test_cycle_of_three(self):
        found = self.cycle_violations(self.THREE, {})
        self.assertEqual(len(found), 1)
        self.assertIn("3 file pairs", found[0])
        self.assertIn("core/nn/b -> core/nn/c", found[0])
        self.assertNotIn("user", found[0])

    def test_no_reason_allows_a_cycle_of_three(self):
        allowed = {("core/nn/a", "core/nn/b", "core/nn/c"): "why not"}
        self.assertTrue(self.cycle_violations(self.THREE, allowed))

    def test_two_pairs_that_share_a_unit_are_a_cycle_of_three(self):
        more = {"core/nn/c.h": "#include <levin/core/nn/b.h>\n", "core/nn/b.cpp": "#include <levin/core/nn/c.h>\n"}
        files = {**self.TWO, **more}
        self.assertIn("3 file pairs", self.cycle_violations(files, {})[0])

    def test_pair_needs_a_reason(self):
        found = self.cycle_violations(self.TWO, {})
        self.assertEqual(found, ["core/nn/a and core/nn/b include each other without a reason in ALLOWED_CYCLES"])
        self.assertTrue(self.cycle_violations(self.TWO, {("core/nn/a", "core/nn/b"): ""}))

    def test_pair_with_a_reason_is_accepted(self):
        self.assertEqual(self.cycle_violations(self.TWO, {("core/nn/a", "core/nn/b"): "a interprets b"}), [])

    def test_reason_that_has_become_stale(self):
        files = {"core/nn/a.h": "", "core/nn/b.h": "#include <levin/core/nn/a.h>\n"}
        found = self.cycle_violations(files, {("core/nn/a", "core/nn/b"): "a interprets b"})
        self.assertEqual(found, ["ALLOWED_CYCLES names core/nn/a and core/nn/b, which do not include each other"])


if __name__ == "__main__":
    unittest.main()
