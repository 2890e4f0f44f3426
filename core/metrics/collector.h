#pragma once

#include <levin/core/base/loss_weight.h>
#include <levin/core/base/state.h>
#include <levin/core/comm/collective.h>
#include <levin/core/metrics/log_options.h>
#include <levin/core/metrics/output_ranks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
struct LogTime;
struct SlotDescription;
}  // namespace detail

/// Store of the values given to `log()`: for each name the last value, the weighted sum and the weight, on the value's
/// device at fixed addresses. Logging neither synchronises with a device nor, once a name is known, allocates.
class Collector {
 public:
  Collector();
  ~Collector();
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// Batch that the following log calls belong to. `step_default`: values whose options do not say are logged on the
  /// step, for this rank alone, rather than on the epoch, for all ranks. `loaders`: number of loaders that the loop
  /// reads. `training_batches`: those begun so far, as FitProgress::moment counts them; `evaluation_batches`: those of
  /// this loader, with or without examples of this rank.
  struct Moment {
    int64_t batch_size = 1;
    int64_t dataloader_idx = 0;
    int64_t loaders = 1;
    bool step_default = false;
    int64_t training_batches = 0;
    int64_t evaluation_batches = 0;
  };
  void begin(const Moment& moment);
  void set_output_ranks(const detail::OutputRanks& outputs) { outputs_ = outputs; }
  int64_t training_batches() const { return moment_.training_batches; }

  /// Logs a value. Throws levin::Error when the tensor holds more than one element, and for a name that loggers use
  /// themselves.
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options);
  void log(std::string_view name, double value, const LogOptions& options);
  void log(std::string_view name, Metric& metric, const LogOptions& options);

  /// One logged value, as given to visitors.
  struct Value {
    const std::string& name;        ///< with "_step" or "_epoch" where both are logged
    const std::string& short_name;  ///< without these
    double value;
    bool prog_bar;
    bool logger;
    int64_t dataloader_idx;
    int64_t training_batches;  ///< of the moment of its last log
  };
  using Visitor = std::function<void(const Value&)>;

  /// Gives the values logged since the last `begin` this weight in means, where none was given with them (batch_size):
  /// that of the step's loss. Undefined: leaves them.
  void weigh(const LossWeight& weight);

  /// Marks the values logged on the step since the last `begin` as visited: later visits find none.
  void end_step() { ++stamp_; }

  /// Visits the values logged on the step since the last `begin` (`all`: at any time in this epoch). Waits for the
  /// device.
  void visit_step(const Visitor& visitor, bool all = false) const;
  /// Visits the values of the epoch so far. Waits for the device.
  void visit_epoch(const Visitor& visitor) const;

  // Reduction over ranks. Every rank calls these at the same places; with one rank they return at once. Until the name
  // is logged again or reset, visits then give values with `sync_dist`, and metrics, as those of all ranks together,
  // the same on each: means weighted by all ranks' weights, metrics computed from all ranks' states. Other names keep
  // their rank's own value. All names but `rank_zero_only` ones must have been logged on every rank, in any order;
  // otherwise levin::Error is thrown on all ranks, naming the rank and the name. Running sums and state_dict remain the
  // rank's own. Costs one all-gather, a second one when the numbers do not fit in 2 KB.

  /// Reduces the values logged on the step since the last `begin`. `took_part`: whether this rank had a batch; a rank
  /// without one need not have logged anything, and gets names and reduced values from the others.
  void synchronize_step(Collective& collective, bool took_part = true);
  /// Reduces the newest value of each name that was logged on a step of this epoch, whichever step: of the ranks that
  /// have one of that step. A rank need not have logged anything.
  void synchronize_newest(Collective& collective);
  /// Reduces the values of the epoch so far. Of several loaders, a rank need not have had a batch of each.
  void synchronize_epoch(Collective& collective, bool took_part = true);

  // For training steps that are recorded once and replayed without calling `log` (`graph`).

  /// Makes values of CPU tensors be kept in tensors too, from here on.
  void make_recordable() { recordable_ = true; }
  /// One recorded log call: the host's part of it.
  struct Recorded {
    detail::LoggedSlot* slot;
    double weight;
    at::Tensor value = {};  ///< on the host, where each replay writes it; undefined: the replay adds the value itself
  };
  using Recording = std::vector<Recorded>;
  /// Records log calls until stop_recording; they must repeat names logged before. What a graph cannot replay throws
  /// levin::Error: a number of the host, a new name, a metric that replaces a state tensor.
  void start_recording();
  /// Ends recording and returns the record. Metrics whose state was replaced get the former one back.
  Recording stop_recording();
  /// Ends recording of a step that was really taken, and returns the record. What cannot be replayed has been said to
  /// the thread's RecordingObserver.
  Recording stop_observing();
  /// Does the host's part of the recorded logs, after a replay.
  void log_again(const Recording& recording);

  /// Returns the metrics that were logged in this epoch.
  std::vector<Metric*> logged_metrics() const;

  /// Returns training_batches at the last log of a value on the step; nothing where this epoch has none. Does not
  /// wait.
  std::optional<int64_t> batch_of_step_value(std::string_view name) const;
  /// Returns whether reading a value would wait for a device.
  bool on_device() const { return on_device_; }

  /// Ends one of several loaders: computes and resets its metrics, so that the next loader starts afresh. Their state
  /// is kept for synchronize_epoch, which needs the same metric objects once more, and for the next loader's batches
  /// where all loaders have one name.
  void end_loader();
  /// Does so with all metrics where training ends inside of an epoch: their objects may serve another call.
  void end_metrics();
  /// Forgets the epoch: sets sums to zero and resets logged metrics. Names and addresses stay.
  void reset();
  bool empty() const { return slots_.empty(); }
  /// Returns whether anything was logged in this epoch.
  bool has_values() const;

  /// Returns the state of this rank's epoch so far; waits for the device.
  State state_dict() const;
  /// Returns the same with the values that metrics have over all ranks, for one who goes on where nothing is logged any
  /// more in this epoch: states alone cannot be computed without the metric's object. Leaves the values as they are.
  /// `took_part`: see synchronize_epoch.
  State state_dict_at_end(Collective& collective, bool took_part);
  /// Continues from a state. A metric's state is applied at the metric's first log.
  void load_state_dict(const State& state);
  /// Merges the states of several ranks, in rank order, into one: for one rank of a run resumed with another number of
  /// ranks, whose other ranks start from `without_values` of it.
  static State merge_states(const std::vector<State>& of_ranks);
  /// Returns the names of a state, with nothing logged yet.
  static State without_values(const State& state);

 private:
  using Slot = detail::LoggedSlot;

  Slot& slot_for(std::string_view name, const LogOptions& options);
  Slot* find_slot(std::string_view name, int64_t own_loader);
  Slot& add_slot(detail::SlotDescription description);
  double weight_of(const LogOptions& options) const;
  detail::LogTime now() const;

  void synchronize(Collective& collective, detail::Over over, bool took_part);
  /// Fills `comparable_` with the slots that ranks compare.
  void select_comparable(detail::Over over);
  void select_newest();
  bool may_be_combined(const LogOptions& options) const { return !outputs_.everywhere || !options.rank_zero_only; }
  /// Adds a name that only other ranks could log.
  void adopt(const detail::SlotDescription& description, detail::Over over);

  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> ordered_;      ///< by loader and name: the same on every rank
  std::vector<Slot*> comparable_;   ///< while synchronising
  int64_t loaders_ = 0;             ///< number of loaders in this epoch, if several
  std::set<int64_t> loaders_read_;  ///< those of them that this rank has had a batch of
  std::unique_ptr<detail::RankExchange> exchange_;
  size_t expected_ = 0;  ///< the slot that the next call probably means: steps log the same names in the same order
  Moment moment_;
  detail::OutputRanks outputs_;
  int64_t stamp_ = 0;
  bool on_device_ = false;
  bool recordable_ = false;
  bool recording_ = false;
  Recording recorded_;
  std::vector<std::pair<Metric*, std::vector<at::Tensor>>> states_before_;  ///< the recording
};

}  // namespace levin::metrics
