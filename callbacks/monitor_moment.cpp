#include <levin/callbacks/monitor_moment.h>

#include <levin/core/options/metrics_due.h>
#include <levin/core/options/options.h>
#include <levin/core/trainer/trainer.h>

namespace levin {

bool MonitorMoment::is_train_epoch_end(const TrainerOptions& options, bool validates) const {
  return choice_.value_or(!validates || validates_with_each_epoch(options));
}

bool MonitorMoment::is_train_epoch_end(const Trainer& trainer) const {
  return is_train_epoch_end(trainer.options(), trainer.validates());
}

bool MonitorMoment::is_whole(const Trainer& trainer) const {
  const TrainerOptions& options = trainer.options();
  const auto batches = trainer.num_training_batches();
  const bool ended_early = batches ? batches_ < *batches
                                   : trainer.stop_requested() || options.max_time.has_value() ||
                                         (options.max_steps >= 0 && trainer.global_step() >= options.max_steps);
  return !ended_early && !trainer.epoch_cut_short();
}

bool MonitorMoment::all_metrics_due(const Trainer& trainer) const {
  if (!trainer.validates()) return is_whole(trainer);
  // Those before this epoch may have been cut short.
  const int64_t done = trainer.current_epoch() + 1;
  const bool may_be_missed = !validates_in(trainer.options(), done) || !is_whole(trainer);
  return levin::all_metrics_due(trainer.options(), trainer.validated(), may_be_missed ? 0 : done);
}

}  // namespace levin
