#include <levin/callbacks/monitor_moment.h>

#include <levin/core/options/metrics_due.h>
#include <levin/core/options/options.h>
#include <levin/core/trainer/trainer.h>

namespace levin {

bool MonitorMoment::is_validation_end(const TrainerOptions& options) const {
  return choice_ ? !*choice_ : !validates_with_each_epoch(options);
}

bool MonitorMoment::is_train_epoch_end(const TrainerOptions& options, bool validated, int64_t epoch) const {
  if (choice_) return *choice_;
  return validates_with_each_epoch(options) || (!validated && all_metrics_due(options, validated, epoch + 1));
}

int64_t MonitorMoment::completed_epochs(const Trainer& trainer) const {
  const TrainerOptions& options = trainer.options();
  const auto batches = trainer.num_training_batches();
  const bool ended_early = batches ? batches_ < *batches
                                   : trainer.stop_requested() || options.max_time.has_value() ||
                                         (options.max_steps >= 0 && trainer.global_step() >= options.max_steps);
  const int64_t done = trainer.current_epoch() + 1;
  return validates_in(options, done) && !ended_early && !trainer.epoch_cut_short() ? done : 0;
}

}  // namespace levin
