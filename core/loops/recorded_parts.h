#pragma once

#include <levin/core/base/step_scaling.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/step_output.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace levin {

class OptimizerHandle;

/// The parts of a recorded step, in the order in which they are watched.
enum class RecordedPart { kStep, kStepEnd, kBackward, kUnscale, kClip, kUpdate, kEndWindow };
constexpr size_t kRecordedParts = 7;
/// Those of a step that does not end its window.
constexpr size_t kRecordedPartsBeforeUpdate = 3;

/// What runs a part where it is recorded without being taken.
struct RecordedBodies {
  std::function<StepOutput(const Batch&)> forward;
  std::function<void(StepOutput&)> backward;
  std::function<void(StepScaling)> update;  ///< clipping and the optimizer's step
};

/// What a step is in its accumulation window.
struct WindowPlace {
  bool adds = false;     ///< to the gradients of former ones
  bool ends = true;      ///< the optimizer takes a step
  bool divides = false;  ///< the loss, which is one of several
  bool operator==(const WindowPlace&) const = default;
};

/// Where hooks run inside of a training_step that optimizes manually.
struct ManualCut {
  enum class Kind { kBeforeBackward, kAfterBackward, kBeforeStep };
  Kind kind;
  OptimizerHandle* optimizer = nullptr;     ///< that steps
  std::vector<at::Tensor> uncombined = {};  ///< after a backward: parameters whose gradients ranks combine now
  bool operator==(const ManualCut& other) const {
    return kind == other.kind && optimizer == other.optimizer &&
           std::equal(uncombined.begin(), uncombined.end(), other.uncombined.begin(), other.uncombined.end(),
                      [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  }
};

}  // namespace levin
