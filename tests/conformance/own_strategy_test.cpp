#include "tests/conformance/strategy_case.h"

#include <levin/core/options/registries.h>
#include <levin/strategies/ddp/ddp.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <utility>

namespace levin::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

std::atomic<int> groups_made{0};
std::atomic<int> buckets_combined{0};

/// Averages as c10d does, and counts.
class CountingHook : public c10d::CppCommHookInterface<Group> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    ++buckets_combined;
    std::vector<at::Tensor> tensors = {bucket.getBufferRef().div_(state_->getSize())};
    return state_->allreduce(tensors)->getFuture();
  }
};

class OwnDdp : public Ddp {
 public:
  using Ddp::Ddp;
  std::string name() const override { return "own_ddp"; }

 protected:
  Group make_group(const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options) override {
    ++groups_made;
    return Ddp::make_group(store, options);
  }
  std::unique_ptr<c10d::CommHookInterface> communication_hook(const Group& group) override {
    return std::make_unique<CountingHook>(group);
  }
};

TEST(OwnStrategy, OverridesProcessGroupAndGradientHookUnderItsName) {
  registries().strategies.add<OwnDdp>("own_ddp");
  const Outcome expected = train_on_one_device({});
  const Outcome got = train({}, {"own_ddp", 2, 0, "start_method: thread"});
  EXPECT_EQ(difference(got.weights, expected.weights, 2e-5), "");
  EXPECT_GE(groups_made, 2);
  // Two ranks, two epochs of five batches.
  EXPECT_GE(buckets_combined, 20);
}

}  // namespace
}  // namespace levin::testing
