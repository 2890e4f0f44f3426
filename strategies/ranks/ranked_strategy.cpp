#include <levin/strategies/ranks/ranked_strategy.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/storage_marks.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace levin {

std::shared_ptr<Strategy> RankedStrategy::for_thread_rank(int64_t local_rank) {
  if (!ranks_.are_threads()) return nullptr;
  if (!can_rebuild())
    throw Error(name(),
                "the strategy was made in a way that cannot be repeated for further ranks; hint: make it with "
                "levin::make, or name it in YAML");
  auto sibling = std::dynamic_pointer_cast<RankedStrategy>(rebuild());
  LEVIN_CHECK(sibling != nullptr, "a rebuilt strategy is of another class");
  sibling->ranks_.join_threads_of(ranks_, local_rank);
  return sibling;
}

void RankedStrategy::setup_environment(const StrategySetup& setup) {
  ranks_.join(setup, [this](const auto& store, const auto& options) { return make_group(store, options); });
  ranks_.lay_out(make_mesh());
}

void RankedStrategy::teardown() {
  detail::forget_ended_marks();
  ranks_.part();
}

DeviceMesh RankedStrategy::make_mesh() {
  return DeviceMesh({{std::string(DeviceMesh::kReplicate), ranks_.world_size()}}, ranks_.world_size());
}

c10::intrusive_ptr<c10d::ProcessGroup> RankedStrategy::make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                                  const ProcessGroupOptions& options) {
  return make_process_group(store, options);
}

}  // namespace levin
