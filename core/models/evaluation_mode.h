#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace levin {

/// Scope in which a model is in evaluation mode. Puts back the mode of each submodule.
class [[nodiscard]] EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) : modules_(model.modules()) {
    for (const auto& module : modules_) was_training_.push_back(module->is_training());
    model.eval();
  }
  ~EvaluationMode() {
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i]->train(was_training_[i]);  // those inside come later
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> was_training_;
};

}  // namespace levin
