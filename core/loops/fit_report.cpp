#include <levin/core/loops/fit_report.h>

#include <levin/core/base/error.h>
#include <levin/core/base/host_scalar.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>

#include <cmath>

namespace levin {

FitReport::FitReport(const TrainerState& state, const OptimizerConnector& optimizers)
    : state_(state),
      optimizers_(optimizers),
      first_step_(state.progress.global_step),
      first_batch_(state.progress.total_batches),
      first_phase_(state.progress.phase) {}

void FitReport::check_epoch() {
  const bool trained = state_.progress.total_batches > first_batch_;
  if (warned_ || !trained || state_.progress.global_step > first_step_ || optimizers_.all().empty()) return;
  warned_ = true;
  log::rank_zero_warning(
      state_.module->automatic_optimization
          ? "no optimizer step was taken in this epoch: every training_step returned nothing; hint: return the loss"
          : "no optimizer step was taken in this epoch of manual optimization; hint: call optimizer().step() in "
            "training_step");
}

void FitReport::check_loss(const at::Tensor& loss, int64_t batch) {
  if (warned_of_loss_ || loss.numel() != 1) return;
  const double value = loss.device().is_cpu() ? read_host_scalar(loss) : loss.item<double>();
  if (std::isfinite(value)) return;
  warned_of_loss_ = true;
  log::warning(
      fmt::format("the loss is {} in epoch {}, batch {}, after {}; training goes on; hint: the callback "
                  "nan_monitor or detect_anomaly finds where it comes from; lower the learning rate, or clip "
                  "gradients",
                  std::isnan(value) ? "NaN" : "infinite", state_.progress.epoch, batch,
                  counted(state_.progress.global_step, "optimizer step")));
}

void FitReport::say_end(const std::string& reason) const {
  const FitProgress& progress = state_.progress;
  const int64_t epochs = progress.epoch + (progress.phase == FitPhase::kEpochDone ? 1 : 0);
  const std::string where = fmt::format("{}, {}", counted(epochs, "epoch"), counted(progress.global_step, "step"));
  // One that only finishes the validation or the epoch under way does what was left.
  if (progress.total_batches == first_batch_ && progress.phase == first_phase_)
    log::rank_zero_warning(fmt::format("nothing was trained: training is at {} already, and {}", where, reason));
  else
    log::rank_zero_info(fmt::format("training ended after {}: {}", where, reason));
}

}  // namespace levin
