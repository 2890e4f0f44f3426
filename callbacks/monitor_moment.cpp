#include <levin/callbacks/monitor_moment.h>

#include <levin/core/options/options.h>
#include <levin/core/trainer/trainer.h>

#include <variant>

namespace levin {
namespace {

/// Whether validation, if there is any, runs once in every epoch, at its end.
bool validates_with_each_epoch(const TrainerOptions& options) {
  if (options.limit_val_batches.is_zero()) return true;
  const auto* fraction = std::get_if<double>(&options.val_check_interval.value());
  return options.check_val_every_n_epoch == 1 && fraction != nullptr && *fraction == 1.0;
}

}  // namespace

bool MonitorMoment::is_validation_end(const TrainerOptions& options) const {
  return choice_ ? !*choice_ : !validates_with_each_epoch(options);
}

bool MonitorMoment::is_train_epoch_end(const TrainerOptions& options, int64_t epoch) const {
  if (choice_) return *choice_;
  return validates_with_each_epoch(options) || (!validated_ && all_metrics_due(options, epoch + 1));
}

bool MonitorMoment::all_metrics_due(const TrainerOptions& options, int64_t completed_epochs) const {
  if (validated_) return true;
  if (validates_with_each_epoch(options)) return completed_epochs > 0;
  // Validation that counts batches across epochs, or goes by time, is due at no particular epoch.
  return options.check_val_every_n_epoch && completed_epochs >= *options.check_val_every_n_epoch &&
         !std::holds_alternative<std::chrono::seconds>(options.val_check_interval.value());
}

int64_t MonitorMoment::completed_epochs(const Trainer& trainer) const {
  const TrainerOptions& options = trainer.options();
  const auto batches = trainer.num_training_batches();
  const bool cut_short = batches ? batches_ < *batches
                                 : trainer.stop_requested() || options.max_time.has_value() ||
                                       (options.max_steps >= 0 && trainer.global_step() >= options.max_steps);
  return trainer.current_epoch() + (cut_short ? 0 : 1);
}

}  // namespace levin
