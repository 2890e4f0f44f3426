#pragma once

#include <cstdint>

namespace levin {

struct TrainerOptions;

/// Whether validation runs once in every epoch, at its end.
bool validates_with_each_epoch(const TrainerOptions& options);

/// Whether validation, where it goes by epochs, has its turn in the last of so many epochs.
bool validates_in(const TrainerOptions& options, int64_t epochs);

/// Whether, after so many whole training epochs of a fit that validates, validation has had its turn as well: a metric
/// that is still missing is a mistake. `validated`: a validation of this fit is over.
bool all_metrics_due(const TrainerOptions& options, bool validated, int64_t completed_epochs);

}  // namespace levin
