#include <levin/core/trainer/fit_report.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>

#include <fmt/format.h>

namespace levin {
namespace {

std::string counted(int64_t count, const char* thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

}  // namespace

void require_training_data(const RankCore& core) {
  const DataLoader& loader = core.loaders.train;
  if (core.resolved.limit_train.is_zero() || loader.num_batches(core.train_shares()) != 0) return;
  const int64_t examples = loader.num_examples().value_or(0);
  if (examples == 0)
    throw Error("data", "the training data set is empty; hint: limit_train_batches: 0 trains nothing on purpose");
  throw Error(
      "data",
      fmt::format("the training loader gives no batch: {} of the data set, batches of {} on each of {}, and "
                  "drop_last leaves out what does not fill one; hint: a smaller batch_size, or drop_last: false",
                  counted(examples, "example"), loader.batch_size(core.train_shares()),
                  counted(core.train_shares(), "rank")));
}

FitReport::FitReport(const RankCore& core)
    : core_(core), first_step_(core.progress.global_step), first_batch_(core.progress.total_batches) {}

void FitReport::check_epoch() {
  if (warned_ || core_.progress.batch == 0 || core_.progress.global_step > first_step_ || core_.optimizer_list.empty())
    return;
  warned_ = true;
  log::rank_zero_warning(
      core_.module().automatic_optimization
          ? "no optimizer step was taken in this epoch: every training_step returned nothing; hint: return the loss"
          : "no optimizer step was taken in this epoch of manual optimization; hint: call optimizer().step() in "
            "training_step");
}

void FitReport::say_end(const std::string& reason) const {
  const FitProgress& progress = core_.progress;
  const int64_t epochs = progress.epoch + (progress.phase == FitPhase::kEpochDone ? 1 : 0);
  const std::string where = fmt::format("{}, {}", counted(epochs, "epoch"), counted(progress.global_step, "step"));
  if (progress.total_batches == first_batch_)
    log::rank_zero_warning(fmt::format("nothing was trained: training is at {} already, and {}", where, reason));
  else
    log::rank_zero_info(fmt::format("training ended after {}: {}", where, reason));
}

}  // namespace levin
