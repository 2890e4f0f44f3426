#pragma once

#include "tests/support/tiny.h"

#include <levin/core/accelerators/accelerator_registry.h>

#include <string>

namespace levin::testing {

/// The devices that the checks run on: CUDA's, or the simulated ones in the program that has them.
inline Accelerator& checked_accelerator() {
  AcceleratorRegistry& registry = AcceleratorRegistry::instance();
  Accelerator* const simulated = registry.find("sim");
  return simulated != nullptr ? *simulated : *registry.find("cuda");
}

inline at::Device checked_device() { return {checked_accelerator().type(), 0}; }
inline bool is_simulated() { return checked_accelerator().name() == "sim"; }

/// Skipped, with the reason, where no such device can be used.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (checked_accelerator().device_count() == 0) GTEST_SKIP() << "no CUDA device can be used here";
  }
  static TrainerOptions on_device(int64_t epochs) {
    TrainerOptions options = quiet(epochs);
    options.accelerator = checked_accelerator().name();
    options.devices = std::vector<int64_t>{0};
    return options;
  }
};

}  // namespace levin::testing
