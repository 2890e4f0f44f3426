#include <levin/core/checkpoint/host_copy.h>

#include <levin/core/accelerators/accelerator_registry.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <set>

namespace levin {
namespace {

class HostCopy {
 public:
  State of(const State& node) {
    if (node.is_tensor()) return leaf(node.as_leaf());
    if (node.is_list()) {
      State copy = State::list();
      for (const State& item : node.as_list()) copy.push_back(of(item));
      return copy;
    }
    if (!node.is_map()) return node;
    State copy = State::map();
    for (const auto& [key, value] : node.as_map()) copy[key] = of(value);
    return copy;
  }

  void wait() const {
    for (const at::Device device : devices_) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.getStream(device).synchronize();
    }
  }

 private:
  State leaf(const TensorLeaf& leaf) {
    if (!leaf.value.defined()) return leaf;
    const at::Tensor source = leaf.value.detach();
    const bool is_page_locked = accelerator_of(source.device()).uses_pinned_memory();
    const at::Tensor copy = at::empty_like(source, source.options().device(at::kCPU).pinned_memory(is_page_locked));
    copy.copy_(source, /*non_blocking=*/is_page_locked);
    if (is_page_locked) devices_.insert(source.device());
    return TensorLeaf{copy, leaf.placement, leaf.saved};
  }

  struct ByIndex {
    bool operator()(const at::Device& a, const at::Device& b) const { return a.index() < b.index(); }
  };
  std::set<at::Device, ByIndex> devices_;  ///< GPUs whose copies are under way on their current streams
};

}  // namespace

State host_copy(const State& tree) {
  const c10::InferenceMode guard(false);
  const at::NoGradGuard no_grad;
  HostCopy copying;
  State copy = copying.of(tree);
  copying.wait();
  return copy;
}

}  // namespace levin
