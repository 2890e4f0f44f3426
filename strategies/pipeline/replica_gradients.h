#pragma once

#include <levin/core/comm/collective.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class GradientReducer;

/// Ranks of the same stage in pipelines side by side; nullptr: this one has no others.
struct StageGroups {
  std::shared_ptr<Collective> replicas;  ///< that hold the same part of the optimizer's state
  std::shared_ptr<Collective> shards;    ///< that divide it
};

/// Averages the gradients that the rank of one stage has over the ranks of the same stage in pipelines side by side,
/// and where these divide the optimizer's state, leaves each the mean of its part alone.
///
/// The exchange of a chunk goes on beside what the rank still has to do: it begins as soon as the last backward of the
/// chunk is over and its gradients have been sent to the stage before, which must not wait for it. Nobody waits for
/// those of the first chunk, whose backward ends the batch: they are exchanged within that backward, by c10d's Reducer.
///
/// Replicas call the methods in the same order.
class ReplicaGradients {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    /// What the optimizer steps: `tensor`, or where state is divided a flat view of this rank's part, or with an owner
    /// a view of all of it or nothing.
    at::Tensor local_shard;
    /// The chunk that alone uses it, in one element; or kLate: its gradient is complete when the batch is.
    int64_t chunk;
    std::optional<int64_t> owner = {};  ///< where state is divided: the rank of `shards` that steps all of it
  };
  static constexpr int64_t kLate = -1;

  ReplicaGradients(std::vector<Parameter> parameters, StageGroups groups);
  ~ReplicaGradients();

  /// Makes the next batch start as the first one did.
  void restart();
  /// Begins a batch after which gradients are averaged. `in_backward`: those of the first chunk are complete when its
  /// backward is.
  void begin_batch(bool in_backward);
  void before_last_backward(int64_t chunk);
  /// Called after it, or after the weights' part of it where that is put off.
  void after_last_backward(int64_t chunk);
  /// Exchanges what is late, and waits for all.
  void finish();

  /// Number of elements in the part of a tensor that one of so many ranks has; the last parts may be shorter, or empty.
  static int64_t part_size(const at::Tensor& tensor, int64_t ranks) { return (tensor.numel() + ranks - 1) / ranks; }

 private:
  /// Gradients of one type that travel together.
  struct Exchange {
    std::vector<const Parameter*> parameters;
    at::Tensor all;   ///< one after the other; where state is divided a row of parts for each shard
    at::Tensor part;  ///< of this rank, where state is divided; of `all` where parameters have owners
    std::unique_ptr<Work> work;
  };

  void start(int64_t chunk);
  int64_t part_size(const at::Tensor& tensor) const { return part_size(tensor, groups_.shards->world_size()); }
  Exchange start_mean(std::vector<const Parameter*> parameters);
  Exchange start_mean_of_parts(std::vector<const Parameter*> parameters);
  Exchange start_mean_for_owners(std::vector<const Parameter*> parameters);
  void take(const Exchange& exchange);
  void take_part(const Exchange& exchange);

  const std::vector<Parameter> parameters_;
  const StageGroups groups_;
  std::vector<Exchange> under_way_;
  std::unique_ptr<GradientReducer> reducer_;  ///< of the first chunk
  bool uses_reducer_ = false;                 ///< in the batch under way
};

}  // namespace levin
