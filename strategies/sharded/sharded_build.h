#pragma once

#include <levin/core/nn/unit.h>
#include <levin/strategies/sharded/flat_parameter_group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace levin {

struct ShardedModelOptions;

/// Divides units that this thread builds, while it lives, over the ranks one by one, each as soon as the next one
/// begins: so is a model built that no rank could hold. Every rank builds the same, with the same random numbers, and
/// keeps its part. A parameter that another unit has too counts for the first one.
class ShardedBuild {
 public:
  /// A unit with the parameters that are its own.
  struct Part {
    const Unit* unit;
    std::unique_ptr<FlatParameterGroup> parameters;
  };

  /// `prepare` is run on each unit before it is divided: it moves and converts its parameters.
  ShardedBuild(std::shared_ptr<Collective> group, std::shared_ptr<Collective> replicas,
               const ShardedModelOptions& options, std::function<void(torch::nn::Module&)> prepare);
  ~ShardedBuild();
  ShardedBuild(const ShardedBuild&) = delete;
  ShardedBuild& operator=(const ShardedBuild&) = delete;

  /// Returns all units that were built, in order; nothing may be built afterwards.
  std::vector<Part> take();

 private:
  void divide_newest();

  std::shared_ptr<Collective> group_;
  std::shared_ptr<Collective> replicas_;
  const ShardedModelOptions& options_;
  std::function<void(torch::nn::Module&)> prepare_;
  Unit* newest_ = nullptr;  ///< its constructor may still be running
  std::vector<Part> parts_;
  std::unordered_set<const void*> divided_;  ///< parameters
  UnitBuildScope scope_;
};

}  // namespace levin
