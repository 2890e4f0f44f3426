#pragma once

#include <levin/core/base/memory_size.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/tuner.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/cluster.h>
#include <levin/core/planning/cluster_plan.h>
#include <levin/core/planning/memory_plan.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class CutModule;

/// Numbers of devices: `8`, `[1, 8]` or `1,8`.
struct DeviceCounts {
  std::vector<int64_t> values = {};
};

template <>
struct ConfigCodec<DeviceCounts> {
  static std::string type_name() { return "integer, or list of integers"; }
  static DeviceCounts parse(const Config& node, const std::string& path);
  static Config dump(const DeviceCounts& value);
};

/// The section `plan` of a program's configuration.
struct PlanOptions {
  DeviceCounts devices{{1, 2, 8, 64}};
  MemorySize memory = {};
  int64_t measure_steps = 0;
  std::optional<Cluster> cluster = {};
  std::string output = {};
  static void describe(Schema<PlanOptions>& schema);
};

/// Plans memory before training: measures two steps on one device (undone afterwards, see DryRun), the second with half
/// of the batch, and computes from them the memory of each strategy on several devices (see plan_memory), or, where a
/// cluster is given, memory and time on all of its devices (see plan_cluster).
///
/// It runs as a finder does (Trainer::tune) and needs a trainer of its own; see planning_options.
class MemoryPlanner final : public Tuner {
 public:
  /// `planned`: options of the training to plan for.
  MemoryPlanner(const PlanOptions& options, const TrainerOptions& planned);

  void on_fit_start(Trainer& trainer, Module& module) override;
  std::string report() const override { return report_; }

  /// Measurements and plans; valid after on_fit_start.
  const TrainingNeeds& needs() const { return needs_; }
  const std::vector<MemoryPlan>& plans() const { return plans_; }
  /// Of the cluster; nullopt where none is given.
  const std::optional<ClusterPlan>& cluster_plan() const { return cluster_plan_; }

 private:
  struct Measured;
  struct MeasuredBatch;
  Measured measure(Trainer& trainer, Module& module, int64_t batch_size, const CutModule* cut = nullptr) const;
  TrainingNeeds needs_of(Trainer& trainer, Module& module, const MeasuredBatch& of_batch,
                         const MeasuredBatch& of_other) const;
  void measure_cut(Trainer& trainer, Module& module, int64_t batch, int64_t other_batch);
  void plan(Trainer& trainer, Module& module);
  int64_t memory_on(int64_t devices, int64_t hosts, const at::Device& device) const;

  PlanOptions options_;
  TrainerOptions planned_;
  TrainingNeeds needs_;
  std::vector<MemoryPlan> plans_;
  std::optional<ClusterPlan> cluster_plan_;
  std::string report_;
};

/// Returns the options of the same training on one device, without files and with this planner as its only callback.
TrainerOptions planning_options(TrainerOptions planned, std::shared_ptr<MemoryPlanner> planner);

}  // namespace levin
