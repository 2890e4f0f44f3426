#pragma once

#include <levin/core/base/loss_weight.h>
#include <levin/core/data/batch.h>

#include <ATen/core/Tensor.h>

#include <utility>

namespace levin {

/// Parts of a StepOutput, for designated initialisers: `return levin::StepOutput({.loss = loss, .outputs = {...}});`
struct StepParts {
  at::Tensor loss = {};  ///< scalar, or undefined
  Batch outputs = {};
  /// Of what the loss is the mean, where these are not the batch's examples: `.weight = targets.ne(padding).sum()`. See
  /// docs/modules.md. What the step logs counts as much in means.
  LossWeight weight = {};
};

/// The result of a step: a scalar loss, named tensors, both, or nothing. In training, no loss means that the batch is
/// skipped. (A class cannot be both converted to from a tensor and an aggregate, hence StepParts.)
class StepOutput {
 public:
  StepOutput() = default;
  StepOutput(at::Tensor loss) : parts_{std::move(loss), {}, {}} {}   // NOLINT(google-explicit-constructor)
  StepOutput(Batch outputs) : parts_{{}, std::move(outputs), {}} {}  // NOLINT(google-explicit-constructor)
  StepOutput(StepParts parts) : parts_(std::move(parts)) {}          // NOLINT(google-explicit-constructor)

  bool empty() const { return !has_loss() && parts_.outputs.empty(); }
  bool has_loss() const { return parts_.loss.defined(); }
  const at::Tensor& loss() const { return parts_.loss; }
  at::Tensor& loss() { return parts_.loss; }
  const Batch& outputs() const { return parts_.outputs; }
  Batch& outputs() { return parts_.outputs; }
  const LossWeight& weight() const { return parts_.weight; }
  LossWeight& weight() { return parts_.weight; }

 private:
  StepParts parts_;
};

}  // namespace levin
