#include <levin/core/options/metrics_due.h>

#include <levin/core/options/options.h>

#include <chrono>
#include <variant>

namespace levin {

bool validates_with_each_epoch(const TrainerOptions& options) {
  const auto* fraction = std::get_if<double>(&options.val_check_interval.value());
  return options.check_val_every_n_epoch == 1 && fraction != nullptr && *fraction == 1.0;
}

bool validates_in(const TrainerOptions& options, int64_t epochs) {
  return epochs % options.check_val_every_n_epoch.value_or(1) == 0;
}

bool all_metrics_due(const TrainerOptions& options, bool validated, int64_t completed_epochs) {
  if (validated) return true;
  if (validates_with_each_epoch(options)) return completed_epochs > 0;
  // Validation that counts batches across epochs, or goes by time, is due at no particular epoch.
  return options.check_val_every_n_epoch && completed_epochs >= *options.check_val_every_n_epoch &&
         !std::holds_alternative<std::chrono::seconds>(options.val_check_interval.value());
}

}  // namespace levin
