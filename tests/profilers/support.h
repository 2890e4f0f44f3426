#pragma once

#include <levin/core/base/log.h>

#include <levin/core/nn/unit.h>
#include "tests/support/tree.h"

#include <tests/support/captured_log.h>
#include <tests/support/tiny.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

/// What the tests of the profilers share.
namespace levin::testing {

class InnerImpl : public torch::nn::Module {
 public:
  InnerImpl() { linear_ = register_module("linear", torch::nn::Linear(4, 4)); }
  at::Tensor forward(at::Tensor x) { return linear_(x).tanh(); }

 private:
  torch::nn::Linear linear_{nullptr};
};
LEVIN_UNIT(Inner);

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl() { inner_ = register_module("inner", Inner()); }
  at::Tensor forward(at::Tensor x) { return x + inner_(x); }

 private:
  Inner inner_{nullptr};
};
LEVIN_UNIT(Block);

/// The units block0, block0.inner, block1 and block1.inner before the two linear layers.
class UnitModule : public TinyModule {
 public:
  explicit UnitModule(const TinyOptions& options) : TinyModule(options) {
    blocks_.push_back(register_module("block0", Block()));
    blocks_.push_back(register_module("block1", Block()));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks_) x = block(x);
    return TinyModule::forward(x);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("train_loss", loss);
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("val_loss", loss);
    return loss;
  }

 private:
  std::vector<Block> blocks_;
};

/// The Python that has torch; empty where there is none.
inline std::string python() {
  const std::string python = torch_python();
  return std::filesystem::exists(python) ? python : "";
}

inline std::string script(const std::string& name) { return source_path("tests/profilers/" + name); }

/// Paths of the files in a folder whose names end so.
inline std::vector<std::string> files_with(const std::string& folder, const std::string& ending) {
  std::vector<std::string> found;
  if (!std::filesystem::exists(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().string().ends_with(ending)) found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace levin::testing
