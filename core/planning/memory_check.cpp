#include <levin/core/planning/memory_check.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/comm/collective.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/planning/memory_plan.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace levin {
namespace {

int64_t bytes_of(const Batch& batch) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : batch.items()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

/// Returns the row of the plan that is about a strategy with these init options; nullptr where none is.
const PlanRow* find_row(const MemoryPlan& plan, const Strategy& strategy, bool checkpoints) {
  const Config& options = strategy.init_options();
  const auto given = [&](const char* key) { return options.is_mapping() ? options.find(key) : nullptr; };
  const Config* const stage_option = given("stage");
  const Config* const offload_option = given("offload");
  const int64_t stage = stage_option != nullptr ? ConfigCodec<int64_t>::parse(*stage_option, "stage") : 0;
  const bool offload = offload_option != nullptr && ConfigCodec<bool>::parse(*offload_option, "offload");
  const auto row = std::find_if(plan.rows.begin(), plan.rows.end(), [&](const PlanRow& candidate) {
    if (candidate.checkpoints != checkpoints) return false;
    if (plan.devices == 1) return true;  // all strategies are alike
    return candidate.strategy == strategy.init_name() && candidate.stages == 0 && candidate.stage == stage &&
           candidate.offload == offload;
  });
  return row == plan.rows.end() ? nullptr : &*row;
}

}  // namespace

void MemoryCheck::setup(Trainer& trainer, Module& module, Stage /*stage*/) {
  most_ = 0;
  measured_.reset();
  int64_t of_module = 0;
  for (const auto& [name, tensor] : named_tensors(module)) of_module += static_cast<int64_t>(tensor.nbytes());
  before_ = trainer.strategy().root_device().is_cpu() ? AccountingAllocator::of_this_thread().in_use() - of_module : 0;
}

void MemoryCheck::on_train_batch_start(Trainer& trainer, Module& /*module*/, const Batch& /*batch*/,
                                       int64_t /*batch_idx*/) {
  const at::Device& device = trainer.strategy().root_device();
  if (device.is_cpu())
    AccountingAllocator::of_this_thread().restart_peak();
  else
    accelerator_of(device).restart_peak(device);
}

void MemoryCheck::on_train_batch_end(Trainer& trainer, Module& /*module*/, const StepOutput& /*output*/,
                                     const Batch& batch, int64_t /*batch_idx*/) {
  // The first step makes the optimizer's state.
  if (trainer.global_step() < 2) return;
  const at::Device& device = trainer.strategy().root_device();
  const int64_t peak =
      device.is_cpu() ? AccountingAllocator::of_this_thread().peak() : accelerator_of(device).memory_stats(device).peak;
  most_ = std::max(most_, peak - before_ - bytes_of(batch));
}

void MemoryCheck::on_train_end(Trainer& trainer, Module& /*module*/) {
  int64_t most = 0;
  for (const std::string& text : trainer.strategy().collective().gather_bytes(std::to_string(most_)))
    most = std::max<int64_t>(most, std::stoll(text));
  if (most > 0) measured_ = {.ranks = trainer.world_size(), .bytes = most};
}

TrainerOptions checking_options(TrainerOptions configured, int64_t steps, std::shared_ptr<MemoryCheck> check) {
  configured.max_steps = steps;
  configured.min_steps = configured.min_epochs = {};
  configured.callbacks = {Spec<Callback>(std::shared_ptr<Callback>(std::move(check)))};
  configured.limit_val_batches = 0.0;
  configured.num_sanity_val_steps = 0;
  configured.fast_dev_run = false;
  configured.logger = false;
  configured.enable_checkpointing = false;
  configured.enable_progress_bar = false;
  configured.enable_model_summary = false;
  return configured;
}

std::string check_report(const MemoryCheck& check, const TrainerOptions& configured, const Strategy& strategy,
                         const TrainingNeeds& needs) {
  if (!check.measured()) return "measured: nothing, because no two steps were whole\n";
  const auto& [ranks, bytes] = *check.measured();
  std::string text = fmt::format("measured: at most {} MiB on a rank of {}, without batches", mebibytes(bytes), ranks);
  const MemoryPlan plan = plan_memory(needs, ranks, std::numeric_limits<int64_t>::max() / 2);
  if (const PlanRow* row = find_row(plan, strategy, !configured.activation_checkpointing.units.empty()))
    text += fmt::format("; predicted: {} MiB ({:+.1f} %)", mebibytes(row->total()),
                        100 * (static_cast<double>(row->total()) / static_cast<double>(bytes) - 1));
  return text + "\n";
}

}  // namespace levin
