#pragma once

#include <levin/core/base/state.h>
#include <levin/core/metrics/log_options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin::metrics {

class Metric;

/// What is behind `log()`: for each name the last value, the weighted sum and the weight, kept on the value's device at
/// fixed addresses. Logging neither synchronises with a device nor, once a name is known, allocates.
class Collector {
 public:
  Collector();
  ~Collector();
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// The moment that following log calls belong to. `step_default`: whether a value is logged on the step or on the
  /// epoch where its options say neither. `loaders`: how many loaders the loop reads.
  struct Moment {
    int64_t batch_size = 1;
    int64_t dataloader_idx = 0;
    int64_t loaders = 1;
    bool step_default = false;
  };
  void begin(const Moment& moment);

  /// Throws levin::Error when the tensor holds more than one element.
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options);
  void log(std::string_view name, double value, const LogOptions& options);
  void log(std::string_view name, Metric& metric, const LogOptions& options);

  /// One logged name as the outside sees it.
  struct Value {
    const std::string& name;        ///< with "_step" or "_epoch" where both are logged
    const std::string& short_name;  ///< without
    double value;
    bool prog_bar;
    bool logger;
    int64_t dataloader_idx;
  };
  using Visitor = std::function<void(const Value&)>;

  /// Values logged on the step since the last `begin` (`all`: at any time in this epoch). Waits for the device.
  void visit_step(const Visitor& visitor, bool all = false) const;
  /// Values of the epoch so far. Waits for the device.
  void visit_epoch(const Visitor& visitor) const;
  /// Whether reading a value would wait for a device.
  bool on_device() const { return on_device_; }

  /// One of several loaders has ended: its metrics are computed and reset, so that the next loader starts afresh.
  void end_loader();
  /// Forgets the epoch: sums go to zero, logged metrics are reset. Names and addresses stay.
  void reset();
  bool empty() const { return slots_.empty(); }

  /// The epoch so far; waits for the device.
  State state_dict() const;
  /// Continues from a state. A metric's state waits for the metric's first log.
  void load_state_dict(const State& state);

 private:
  struct Slot;

  Slot& slot_for(std::string_view name, const LogOptions& options);
  Slot& add_slot(std::string_view name, int64_t dataloader_idx, bool several_loaders, const LogOptions& options,
                 bool on_step, bool on_epoch);
  double weight_of(const LogOptions& options) const;

  std::vector<std::unique_ptr<Slot>> slots_;
  size_t expected_ = 0;  ///< the slot that the next call probably means: steps log the same names in the same order
  Moment moment_;
  int64_t stamp_ = 0;
  bool on_device_ = false;
};

}  // namespace levin::metrics
