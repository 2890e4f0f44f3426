#pragma once

#include <levin/core/base/schema.h>

#include <torch/optim/optimizer.h>

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::optim {

/// Parameters with options of their own.
template <class Options>
struct ParameterGroup {
  std::vector<at::Tensor> params = {};
  Options options = {};
};

/// The options of one parameter group of Levin's optimizers, as torch::optim::OptimizerParamGroup wants them: the plain
/// struct that users initialise with `{.lr = ...}` cannot be an aggregate and derive from OptimizerOptions at once.
class DescribedGroupOptions : public torch::optim::OptimizerOptions {
 public:
  virtual Config dump() const = 0;
  /// Replaces all values. Throws ConfigError led by `path`.
  virtual void restore(const Config& values, const std::string& path) = 0;
  /// The momentum, or the first beta; nullptr when the optimizer has neither.
  virtual double* momentum() = 0;
  /// Whether all options are as in `other`, the learning rate excepted.
  virtual bool equals_but_for_lr(const torch::optim::OptimizerOptions& other) const = 0;
};

template <Described Options>
class GroupOptions final : public DescribedGroupOptions {
 public:
  explicit GroupOptions(Options initial) : values(std::move(initial)) {}

  double get_lr() const override { return values.lr; }
  void set_lr(const double lr) override { values.lr = lr; }
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(values);
  }

  Config dump() const override { return schema_of<Options>().dump(values); }
  void restore(const Config& saved, const std::string& path) override { values = parse_options<Options>(saved, path); }
  double* momentum() override {
    if constexpr (requires { values.momentum; })
      return &values.momentum;
    else if constexpr (requires { values.betas; })
      return &values.betas[0];
    else
      return nullptr;
  }

  bool equals_but_for_lr(const torch::optim::OptimizerOptions& other) const override {
    const auto* typed = dynamic_cast<const GroupOptions*>(&other);
    if (typed == nullptr) return false;
    if constexpr (std::equality_comparable<Options>) {
      Options same_rate = typed->values;
      same_rate.lr = values.lr;
      return same_rate == values;
    } else {
      return false;  // It cannot be known.
    }
  }

  Options values;
};

/// The learning rate of each parameter group.
std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer);

/// Sets the momentum (or first beta) of a group of Levin's or LibTorch's optimizers; false when it has neither.
bool set_momentum(torch::optim::OptimizerOptions& options, double momentum);

/// Frees (or zeroes) the gradients of all parameters. Unlike torch::optim::Optimizer::zero_grad it does not detach
/// them, which would throw for gradients that are views of communication buckets.
void zero_grad(torch::optim::Optimizer& optimizer, bool set_to_none = true);

}  // namespace levin::optim
