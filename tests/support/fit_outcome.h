#pragma once

#include <levin/core/base/log.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin::testing {

/// What a fit left behind, and what was seen of it.
struct FitOutcome {
  std::vector<at::Tensor> state;  ///< parameters and buffers
  std::vector<uint32_t> versions;
  MetricMap metrics;
  std::vector<double> seen;      ///< by hooks
  std::vector<at::Tensor> held;  ///< what a callback took and kept
  at::Tensor random;             ///< the next random number
  int64_t training_steps = 0;
  std::string log;
};

/// Fits, and takes what the module, the trainer and the log have then.
inline void fit_into(FitOutcome& outcome, Trainer& trainer, const std::shared_ptr<Module>& module,
                     const DataLoader& training, const DataLoader& validation) {
  log::set_sink([&](const std::string& line) { outcome.log += line + "\n"; });
  struct Reset {
    ~Reset() { log::set_sink(nullptr); }
  } reset;
  trainer.fit(module, training, validation);
  for (const auto& list : {module->parameters(), module->buffers()})
    for (const auto& tensor : list) {
      outcome.state.push_back(tensor.detach().clone());
      outcome.versions.push_back(tensor._version());
    }
  outcome.metrics = trainer.callback_metrics();
  outcome.random = at::rand({1});
}

/// As identical(), and NaN is NaN.
inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.detach().reshape({-1}).contiguous().view(at::kByte);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const at::Tensor& one, const at::Tensor& other) { return bytes(one).equal(bytes(other)); });
}

/// Expects two fits to have left and shown the same, to the bit. Their logs and numbers of steps may differ.
inline void expect_same_outcome(const FitOutcome& expected, const FitOutcome& got) {
  EXPECT_TRUE(same_bits(expected.state, got.state)) << got.log;
  EXPECT_EQ(expected.versions, got.versions);
  EXPECT_EQ(expected.metrics, got.metrics);
  EXPECT_EQ(expected.seen, got.seen);
  EXPECT_TRUE(same_bits(expected.held, got.held)) << "what callbacks hold for later";
  EXPECT_TRUE(expected.random.equal(got.random));
}

}  // namespace levin::testing
