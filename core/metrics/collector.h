#pragma once

#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/metrics/log_options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::metrics {

class Metric;
namespace detail {
class RankExchange;
enum class Over;
struct LoggedSlot;
struct SlotDescription;
}  // namespace detail

/// What is behind `log()`: for each name the last value, the weighted sum and the weight, kept on the value's device at
/// fixed addresses. Logging neither synchronises with a device nor, once a name is known, allocates.
class Collector {
 public:
  Collector();
  ~Collector();
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// The moment that following log calls belong to. `step_default`: whether a value is logged on the step, for this
  /// rank alone, or on the epoch, for all ranks, where its options do not say. `loaders`: how many loaders the loop
  /// reads.
  struct Moment {
    int64_t batch_size = 1;
    int64_t dataloader_idx = 0;
    int64_t loaders = 1;
    bool step_default = false;
  };
  void begin(const Moment& moment);

  /// Throws levin::Error when the tensor holds more than one element, and for a name that loggers use themselves.
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

  /// The values logged on the step since the last `begin` have been handed on: what asks for them again finds none.
  void end_step() { ++stamp_; }

  /// Values logged on the step since the last `begin` (`all`: at any time in this epoch). Waits for the device.
  void visit_step(const Visitor& visitor, bool all = false) const;
  /// Values of the epoch so far. Waits for the device.
  void visit_epoch(const Visitor& visitor) const;

  // Over ranks. Every rank calls these at the same places; with one rank they return at once. Values with `sync_dist`
  // and metrics are then, for both visits, those of all ranks together, the same on each, until the name is logged
  // again or reset. Means are weighted by all ranks' weights, metrics computed from all ranks' states. Other names keep
  // their rank's own value. All but `rank_zero_only` ones must have been logged on every rank, in any order: throws
  // levin::Error on all ranks, naming the rank and the name, where they were not. What is summed up further, and what
  // state_dict gives, remains the rank's own. One all-gather, a second one where the numbers do not fit in 2 KB.

  /// The values logged on the step since the last `begin`. `took_part`: whether this rank had a batch; one that had
  /// none need not have logged anything, and gets the names and the reduced values from the others.
  void synchronize_step(Collective& collective, bool took_part = true);
  /// The values of the epoch so far. Of several loaders, a rank need not have had a batch of each.
  void synchronize_epoch(Collective& collective, bool took_part = true);

  // For training steps that are recorded once and done again without calling `log` (`cuda_graph`).

  /// From here on values of tensors are kept in tensors on the CPU too.
  void make_recordable() { recordable_ = true; }
  /// A recorded step of the host's part of logging.
  struct Recorded {
    detail::LoggedSlot* slot;
    double weight;
  };
  using Recording = std::vector<Recorded>;
  /// From here on, until stop_recording, logs are recorded: logging again what was logged before, of the same values'
  /// tensors. What a graph could not follow is refused with levin::Error: a number of the host, a new name, a metric
  /// that puts another tensor in the place of its state.
  void start_recording();
  /// Metrics whose state was replaced get the former one back.
  Recording stop_recording();
  /// What the host does when the recorded logs are done again.
  void log_again(const Recording& recording);

  /// The metrics that were logged in this epoch.
  std::vector<Metric*> logged_metrics() const;

  /// Whether reading a value would wait for a device.
  bool on_device() const { return on_device_; }

  /// One of several loaders has ended: its metrics are computed and reset, so that the next loader starts afresh. Their
  /// state is kept for synchronize_epoch, which needs the same metric objects once more.
  void end_loader();
  /// Forgets the epoch: sums go to zero, logged metrics are reset. Names and addresses stay.
  void reset();
  bool empty() const { return slots_.empty(); }

  /// The epoch so far, of this rank; waits for the device.
  State state_dict() const;
  /// Continues from a state. A metric's state waits for the metric's first log.
  void load_state_dict(const State& state);
  /// One state of what several ranks had, in rank order: for one rank of a run that goes on with another number of
  /// ranks, while the others start from `without_values` of it.
  static State merge_states(const std::vector<State>& of_ranks);
  /// The names of a state, with nothing logged yet.
  static State without_values(const State& state);

 private:
  using Slot = detail::LoggedSlot;

  Slot& slot_for(std::string_view name, const LogOptions& options);
  Slot* find_slot(std::string_view name, int64_t dataloader_idx);
  Slot& add_slot(detail::SlotDescription description);
  double weight_of(const LogOptions& options) const;

  void synchronize(Collective& collective, detail::Over over, bool took_part);
  /// Fills `comparable_` with the slots that ranks compare.
  void select_comparable(detail::Over over);
  /// Makes a name known that only other ranks could log.
  void adopt(const detail::SlotDescription& description, detail::Over over);

  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> ordered_;      ///< by loader and name: the same on every rank
  std::vector<Slot*> comparable_;   ///< while synchronising
  int64_t loaders_ = 0;             ///< in this epoch, where there are several
  std::set<int64_t> loaders_read_;  ///< those of them that this rank has had a batch of
  std::unique_ptr<detail::RankExchange> exchange_;
  size_t expected_ = 0;  ///< the slot that the next call probably means: steps log the same names in the same order
  Moment moment_;
  int64_t stamp_ = 0;
  bool on_device_ = false;
  bool recordable_ = false;
  bool recording_ = false;
  Recording recorded_;
  std::vector<std::pair<Metric*, std::vector<at::Tensor>>> states_before_;  ///< the recording
};

}  // namespace levin::metrics
