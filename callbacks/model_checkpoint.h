#pragma once

#include <levin/callbacks/checkpoint_name.h>
#include <levin/callbacks/monitor_moment.h>
#include <levin/callbacks/top_checkpoints.h>
#include <levin/core/base/schema.h>
#include <levin/core/checkpoint/run_paths.h>
#include <levin/core/interfaces/checkpointer.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace levin {

struct MonitoredValue;

/// Options of ModelCheckpoint, explained in describe().
struct ModelCheckpointOptions {
  std::string monitor = {};
  std::string mode = "min";
  int64_t save_top_k = 1;
  bool save_last = false;
  std::optional<int64_t> every_n_train_steps = {};
  std::optional<int64_t> every_n_epochs = {};
  std::optional<std::string> train_time_interval = {};  ///< DD:HH:MM:SS
  std::string filename = "{epoch}-{step}";
  bool auto_insert_metric_name = true;
  std::string dirpath = {};
  /// Default: see MonitorMoment
  std::optional<bool> save_on_train_epoch_end = {};
  bool asynchronous = false;
  bool save_on_exception = false;
  bool enable_version_counter = true;
  bool save_weights_only = false;
  std::string format = "levin";
  std::string upload_to = {};

  static void describe(Schema<ModelCheckpointOptions>& schema);
};

/// Saves checkpoints at intervals and keeps the best ones by a monitored metric.
///
/// A checkpoint is ranked by a value of its own epoch, each value once; inside of an epoch by one of its own batch, or
/// of the validation that comes next. Where there is none when saving is due, it is saved when there is.
///
/// An older checkpoint is removed only after the one that supersedes it is whole on the disk; when saving fails,
/// nothing is removed and the callback is as it was before. Only folders directly below `dirpath` are ever removed:
/// after a resume into another run's folder, the former run's checkpoints still rank, but stay where they are.
class ModelCheckpoint final : public Checkpointer {
 public:
  using Options = ModelCheckpointOptions;
  static constexpr const char* kLastName = "last";
  static constexpr const char* kExceptionName = "on_exception";

  /// Throws ConfigError for options that conflict.
  explicit ModelCheckpoint(const Options& options = {});

  std::string state_key() const override;
  std::string best_model_path() const override;
  std::optional<double> best_model_score() const override;
  std::string last_model_path() const override { return of_signal_.empty() ? record_.newest_path : of_signal_; }
  /// Path of the kept checkpoint that would be removed next; empty while there is room for more.
  std::string kth_best_model_path() const { return record_.top.next_superseded(); }
  std::optional<double> kth_value() const;
  /// The kept checkpoints with their scores, in the order of saving; empty without a monitor.
  const std::vector<TopCheckpoints::Item>& best_k_models() const { return record_.top.items(); }
  void save_last(Trainer& trainer) override;
  std::string remote_folder() const override { return options_.upload_to; }
  std::vector<std::string> kept_paths() const override;
  bool saves_weights_only() const override { return options_.save_weights_only; }

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;

  void on_load_checkpoint(Trainer& trainer, Module& module, const State& checkpoint) override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  using Metrics = std::map<std::string, double>;

  /// State that a save changes; taken back as a whole when it fails.
  struct Record {
    TopCheckpoints top;
    std::string ranked_path;  ///< without a monitor: the one checkpoint that save_top_k=1 keeps
    std::string last_path;    ///< the `last` of this run
    std::string newest_path;
    int64_t newest_step = -1;    ///< the global step of it
    bool newest_is_end = false;  ///< whether it was saved where training had ended
    std::optional<double> current_score;
    int64_t considered_step = -1;    ///< the global step at which saving was last due
    double considered_seconds = 0;   ///< the training time of it
    bool waits = false;              ///< saving was due, and no value has come yet that ranks a checkpoint
    int64_t ranked_moment = -1;      ///< of the value that ranked last; see MonitoredValue
    int64_t last_step = -1;          ///< the global step at which `last` was due
    bool last_is_of_signal = false;  ///< `last` is of the moment at which a signal ended training
    bool was_due_at_end = false;     ///< saving was due last because training ended
  };

  bool saves_by_epoch() const { return !options_.every_n_train_steps && !interval_; }
  bool is_epoch_due(const Trainer& trainer) const;
  bool is_step_due(const Trainer& trainer) const;
  /// How new a value must be to rank the weights as they are. Inside of an epoch a validation may follow the batch.
  enum class MadeIn { kThisBatch, kThisEpoch };
  void save_due(Trainer& trainer, MadeIn made_in, bool metric_required, bool at_end = false);
  void end_waiting(Trainer& trainer, bool metric_required);
  bool save_best(Trainer& trainer, const Metrics& metrics, MadeIn made_in, bool metric_required);
  void save_newest(Trainer& trainer, const Metrics& metrics);
  void write_last(Trainer& trainer, bool is_due);
  void write(Trainer& trainer, Record next, const std::string& path, bool is_last, const std::string& superseded = {});
  /// Notes that what is saved now, to this path, is the newest.
  static void set_newest(const Trainer& trainer, Record& record, const std::string& path);
  /// Saves the newest checkpoint once more where training ended later at the same step, as at `max_time`: whoever goes
  /// on from it would train on.
  void save_end(Trainer& trainer);
  void forget_unwritten();
  bool may_remove(const Trainer& trainer, const std::string& path) const;
  std::string folder(const Trainer& trainer) const;
  /// What a checkpoint's name ends with: nothing for a folder.
  std::string suffix() const;
  std::string free_path(Trainer& trainer, const std::string& name, const std::string& may_replace) const;
  Metrics candidates(Trainer& trainer) const;
  std::optional<MonitoredValue> monitored(Trainer& trainer, const Metrics& metrics) const;

  const Options options_;
  const MonitorMode mode_;
  const CheckpointName name_;
  const std::optional<std::chrono::seconds> interval_;
  MonitorMoment moment_;
  RunPaths paths_;
  Record record_;
  std::string of_signal_;  ///< `last` of the signal that ended training, of which a run that goes on knows nothing
  std::optional<Record> before_newest_;  ///< the record without a checkpoint that may still be being written
};

}  // namespace levin
