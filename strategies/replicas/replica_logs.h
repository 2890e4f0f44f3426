#pragma once

#include <levin/core/metrics/log_options.h>
#include <levin/core/metrics/metric_reference.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace levin {

namespace detail {
class ModuleRuntime;
}

/// Logs of replicas in a step: kept while they run, then handed on as if one module had seen the whole batch.
///
/// Each name is handed on once for each time the first replica logs it, in its order; names that only others log come
/// after. Means are weighted by LogOptions' batch_size where given, else as the losses of the parts are, and a replica
/// that does not log a name does not count for it. A replica's metric is merged into that of the module with the same
/// name and reset.
class ReplicaLogs {
 public:
  /// `gathers`: replicas run one after another and alike on all ranks, so that their steps may call all_gather.
  explicit ReplicaLogs(const std::vector<at::Device>& devices, bool gathers = false);
  ~ReplicaLogs();
  ReplicaLogs(const ReplicaLogs&) = delete;
  ReplicaLogs& operator=(const ReplicaLogs&) = delete;

  /// Begins a step: forgets what was logged. `origin` is the runtime that everything but logging goes to.
  void begin(detail::ModuleRuntime& origin);
  /// The runtime that a replica is attached to; only its own thread calls it.
  detail::ModuleRuntime& runtime(int64_t replica);
  /// Hands the step on to the origin. `weights`: of the part of each replica that ran, on the host or on the first
  /// device; see part_weights.
  void replay(const std::vector<LossWeight>& weights);

 private:
  class Recorder;
  struct Entry;

  std::vector<const Entry*> gather(const Entry& first, size_t replica, size_t replicas) const;
  void replay_value(const std::vector<const Entry*>& entries, const std::vector<LossWeight>& weights);
  void replay_metric(const std::vector<const Entry*>& entries);

  std::vector<std::unique_ptr<Recorder>> recorders_;
  detail::ModuleRuntime* origin_ = nullptr;
  at::Device device_;                                                  ///< where tensors are combined
  std::map<std::string, metrics::MetricReference> metrics_of_module_;  ///< by logged name
};

}  // namespace levin
