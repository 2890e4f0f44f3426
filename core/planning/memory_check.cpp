#include <levin/core/planning/memory_check.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/device_mesh.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/rank_mesh.h>
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

/// Returns the way in which a strategy trained, of these sizes; nothing where no plan is about its options.
std::optional<PlanRow> planned_way(const PlanRow& sizes, const Strategy& strategy, bool checkpoints) {
  PlanRow way = sizes;
  way.checkpoints = checkpoints;
  if (way.devices() == 1) return way;  // all strategies are alike
  if (strategy.init_name() != way.strategy()) return std::nullopt;
  const Config& options = strategy.init_options();
  const auto text_of = [&](const char* key, const char* unset) {
    const Config* const value = options.is_mapping() ? options.find(key) : nullptr;
    return value == nullptr ? std::string(unset) : value->text();
  };
  if (way.pipeline > 1) {
    // Plans are about one number of micro-batches, and about a cut that is known before.
    if (text_of("balance_by", "time") != "parameters" || text_of("balance", "auto") != "auto" ||
        text_of("micro_batches", "8") != "8" || text_of("checkpoint", "never") == "except_last" ||
        text_of("shard_keep_window_gradients", "false") != "false")
      return std::nullopt;
    way.schedule = text_of("schedule", "1f1b");
    way.chunks = std::stoll(text_of("chunks_per_rank", "0"));
    if (way.chunks == 0) way.chunks = way.schedule == "interleaved" ? 2 : 1;
    way.checkpoints = text_of("checkpoint", "never") == "always";
    way.stage = way.shard > 1 ? std::stoll(text_of("shard_stage", "1")) : 0;
  } else if (way.shard > 1) {
    way.stage = std::stoll(text_of("stage", "3"));
    way.offload = text_of("offload", "false") == "true";
  }
  return way;
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
  const RankMesh mesh = trainer.mesh();
  const PlanRow sizes{.pipeline = mesh.size(DeviceMesh::kPipeline),
                      .replicate = mesh.size(DeviceMesh::kReplicate),
                      .shard = mesh.size(DeviceMesh::kShard),
                      .tensor = mesh.size(DeviceMesh::kTensor)};
  if (most > 0) measured_ = {.mesh = sizes, .bytes = most};
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
  const auto& [mesh, bytes] = *check.measured();
  std::string text =
      fmt::format("measured: at most {} MiB on a rank of {}, without batches", mebibytes(bytes), mesh.devices());
  if (const auto way = planned_way(mesh, strategy, !configured.activation_checkpointing.units.empty())) {
    const PlanRow row = plan_row(needs, std::numeric_limits<int64_t>::max() / 2, *way);
    text += fmt::format("; predicted: {} MiB ({:+.1f} %)", mebibytes(row.total()),
                        100 * (static_cast<double>(row.total()) / static_cast<double>(bytes) - 1));
  }
  return text + "\n";
}

}  // namespace levin
