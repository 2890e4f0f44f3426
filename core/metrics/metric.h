#pragma once

#include <levin/core/base/state.h>
#include <levin/core/metrics/reduction.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin::metrics {

/// A quantity accumulated over batches on the device. A subclass declares state tensors with add_state in its
/// constructor, adds to them in its own `update` (which returns *this, so that it can be logged at once), and computes
/// from them. Updating never synchronises with the device. A metric is moved but not copied: two copies would count in
/// one state.
class Metric : public Stateful {
 public:
  struct StateTensor {
    std::string name;
    at::Tensor value;  ///< a tensor of fixed shape, or rows that update() concatenates
    at::Tensor initial;
    Reduction reduction;
  };

  Metric() = default;
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;
  Metric(Metric&&) = default;
  Metric& operator=(Metric&&) = default;
  ~Metric() override = default;

  /// Returns the value so far: a scalar tensor, or one value a class when the options ask for it. NaN before any
  /// update, except for counts.
  virtual at::Tensor compute() const = 0;
  /// Resets to before any update. State of a fixed shape keeps its address.
  void reset();
  /// Adds what another object of the same class and options has seen, each state by its Reduction. Throws levin::Error
  /// when the classes or the shapes of their states differ.
  void merge_from(const Metric& other);
  /// The same with the state_dict() of such an object.
  void merge_state(const State& saved);

  /// Adds what `counter` has counted of a batch, as an update of this metric; both have the same states. Nobody waits
  /// for a device.
  void add_counted(const Metric& counter);
  /// Returns in words what an update counts. Metrics with equal words have equal states after the same updates, so that
  /// a MetricCollection counts once for all of them. Empty: this one shares with none.
  virtual std::string update_key() const { return {}; }

  /// Ends a batch: updates since the last call (at the first call, all of them) are what last_batch() gives until the
  /// next update. From then on the metric keeps each batch's states beside the whole, at the cost of two operations a
  /// state and update. The trainer calls it when a metric is logged on the step.
  void end_batch();
  /// Returns the states of the last batch, in the order of `states`; empty when end_batch() was never called.
  std::vector<at::Tensor> last_batch() const;
  /// Returns what compute() gives for other states, in the order of `states`. Its own states stay unchanged.
  at::Tensor compute_from(std::vector<at::Tensor> values);

  /// Returns the tensors to reduce over ranks before compute(); the trainer reduces those of logged metrics itself.
  std::vector<StateTensor>& states() { return states_; }
  const std::vector<StateTensor>& states() const { return states_; }

  /// Returns a copy of the state, by name; each rank has its own.
  State state_dict() const override;
  /// Continues from a state on any device, bit for bit; from that of an earlier version as far as it has the digits.
  /// Throws levin::Error naming the state that does not fit.
  void load_state_dict(const State& state) override;

  /// Returns a pointer that expires when this object is destroyed or moved from. Its first call allocates.
  std::weak_ptr<const void> lifetime();

 protected:
  /// Makes new tensors ordinary ones without gradients during its lifetime, even under inference mode, whose tensors
  /// cannot be changed outside of it.
  class OrdinaryTensors {
    c10::InferenceMode ordinary_tensors_{false};
    c10::NoGradGuard no_grad_;
  };
  /// Scope of an update: every `update` first makes one of *this. States are ordinary tensors in it. When the metric
  /// keeps its last batch, they begin afresh, and what an update that throws has added is left out.
  class UpdateScope {
   public:
    explicit UpdateScope(Metric& metric);
    ~UpdateScope();
    UpdateScope(const UpdateScope&) = delete;
    UpdateScope& operator=(const UpdateScope&) = delete;

   private:
    OrdinaryTensors ordinary_;
    Metric* metric_;  ///< nullptr when there is nothing to keep, or within another scope
    int exceptions_;
  };

  /// Declares a state tensor; returns its index for `state`. For kConcatenate, `initial` has no rows yet and says the
  /// type and the shape of one row; rows of a wider floating-point type widen the state.
  size_t add_state(std::string name, const at::Tensor& initial, Reduction reduction);
  at::Tensor& state(size_t index) { return states_[index].value; }
  const at::Tensor& state(size_t index) const { return states_[index].value; }
  /// Moves the state to the device of the values that arrive; a no-op after the first batch.
  void ensure_device(const at::Device& device);
  /// Adds rows to a kConcatenate state, in amortised constant time a row.
  void append_rows(size_t index, const at::Tensor& rows);
  /// Returns a saved state in the names and shapes of today, where an earlier version had others.
  virtual State upgraded(const State& saved) const { return saved; }

 private:
  void combine(size_t index, at::Tensor& value, const at::Tensor& other);
  void add_values(const std::vector<at::Tensor>& values);
  void forget_last_batch();
  void begin_batch_if_ended();
  void begin_update();
  void end_update(bool failed);

  /// Share of the last batch in a state.
  struct LastBatch {
    at::Tensor value;       ///< at a fixed address; during an update the state itself. Undefined for kConcatenate
    at::Tensor whole;       ///< the state, during an update
    at::Tensor earlier;     ///< the share of earlier updates of the batch, during an update
    int64_t first_row = 0;  ///< first row of the last batch, for kConcatenate
  };

  std::vector<StateTensor> states_;
  std::vector<LastBatch> last_batch_;  ///< as `states_`; empty while it is not kept
  bool batch_ended_ = false;           ///< the next update begins another batch
  bool updating_ = false;
  /// Memory of a kConcatenate state, with room for rows to come; undefined for the others.
  std::vector<at::Tensor> row_buffers_;

  /// Object that `lifetime` observes. It does not move with the metric, so that references do not take another for it.
  struct Lifetime {
    Lifetime() = default;
    Lifetime(Lifetime&& other) noexcept { other.token.reset(); }
    Lifetime& operator=(Lifetime&& other) noexcept {
      other.token.reset();
      return *this;
    }
    std::shared_ptr<const void> token;
  };
  Lifetime lifetime_;
};

}  // namespace levin::metrics
