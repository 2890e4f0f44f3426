#include <levin/core/planning/memory_check.h>

#include <levin/core/comm/collective.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/devices/memory_stats.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/options/compatibility_options.h>
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

/// Of the strategies that a plan has, as the configuration writes them; nullptr for others.
const PlanRow* find_row(const MemoryPlan& plan, const TrainerOptions& configured) {
  const auto [name, options] =
      detail::split_named_config(present_strategy(configured.strategy.config()), "trainer.strategy", "strategy");
  const bool divides = name.text().starts_with("sharded") && plan.devices > 1;
  if (!divides && !name.text().starts_with("ddp") && plan.devices > 1) return nullptr;
  const Config* const stage_option = options.is_mapping() ? options.find("stage") : nullptr;
  const Config* const offload = options.is_mapping() ? options.find("offload") : nullptr;
  const int64_t stage = !divides                  ? 0
                        : stage_option != nullptr ? ConfigCodec<int64_t>::parse(*stage_option, "stage")
                                                  : 3;
  const bool offloads = divides && offload != nullptr && ConfigCodec<bool>::parse(*offload, "offload");
  const bool checkpoints = !configured.activation_checkpointing.units.empty();
  const auto row = std::find_if(plan.rows.begin(), plan.rows.end(), [&](const PlanRow& candidate) {
    return candidate.stage == stage && candidate.offload == offloads && candidate.checkpoints == checkpoints;
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
    restart_peak(device);
}

void MemoryCheck::on_train_batch_end(Trainer& trainer, Module& /*module*/, const StepOutput& /*output*/,
                                     const Batch& batch, int64_t /*batch_idx*/) {
  // The first step makes the optimizer's state.
  if (trainer.global_step() < 2) return;
  const at::Device& device = trainer.strategy().root_device();
  const int64_t peak = device.is_cpu() ? AccountingAllocator::of_this_thread().peak() : memory_stats(device).peak;
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

std::string check_report(const MemoryCheck& check, const TrainerOptions& configured, const TrainingNeeds& needs) {
  if (!check.measured()) return "measured: nothing, because no two steps were whole\n";
  const auto& [ranks, bytes] = *check.measured();
  std::string text = fmt::format("measured: at most {} MiB on a rank of {}, without batches", mebibytes(bytes), ranks);
  const MemoryPlan plan = plan_memory(needs, ranks, std::numeric_limits<int64_t>::max() / 2);
  if (const PlanRow* row = find_row(plan, configured))
    text += fmt::format("; predicted: {} MiB ({:+.1f} %)", mebibytes(row->total()),
                        100 * (static_cast<double>(row->total()) / static_cast<double>(bytes) - 1));
  return text + "\n";
}

}  // namespace levin
