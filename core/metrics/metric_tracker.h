#pragma once

#include <levin/core/base/state.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace levin::metrics {

/// Values over time: one for each epoch, say.
class ValueTracker : public Stateful {
 public:
  /// `maximize`: whether a larger value is better.
  explicit ValueTracker(bool maximize = true) : maximize_(maximize) {}

  /// Adds a value of any shape, the same as those before it. Throws levin::Error for another shape.
  void add(const at::Tensor& value);
  void add(double value);

  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  /// Returns all values in order, [size, ...], float64, on the CPU.
  at::Tensor values() const;

  struct Best {
    double value;
    int64_t index;
  };
  /// Returns the best value and its place; of equal ones the first, and NaN only where all are. Throws levin::Error for
  /// none, and for values of more than one element.
  Best best() const;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  bool maximize_;
  std::vector<at::Tensor> values_;
};

/// A metric with its values at the end of each epoch, say: `tracker_.metric().update(...)` in steps,
/// `tracker_.increment()` at the end.
template <class T>
class MetricTracker : public ValueTracker {
 public:
  /// `maximize`: whether a larger value is better.
  explicit MetricTracker(T metric, bool maximize = true) : ValueTracker(maximize), metric_(std::move(metric)) {}

  T& metric() { return metric_; }
  const T& metric() const { return metric_; }
  /// Adds the metric's present value, of what this rank has seen, and resets it.
  void increment() {
    add(metric_.compute());
    metric_.reset();
  }

  /// Returns the values and the metric's own state.
  State state_dict() const override {
    State state = ValueTracker::state_dict();
    state["metric"] = metric_.state_dict();
    return state;
  }
  void load_state_dict(const State& state) override {
    ValueTracker::load_state_dict(state);
    metric_.load_state_dict(state.at("metric"));
  }

 private:
  T metric_;
};

}  // namespace levin::metrics
