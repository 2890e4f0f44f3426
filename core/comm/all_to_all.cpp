#include <levin/core/comm/all_to_all.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>
#include <vector>

namespace levin {

at::Tensor all_to_all(Collective& group, const at::Tensor& parts) {
  constexpr int64_t kTag = 4071;
  const int64_t ranks = group.world_size();
  const int64_t own = group.rank();
  LEVIN_CHECK(parts.dim() >= 1 && parts.size(0) == ranks && parts.is_contiguous(), "each rank gets one part");
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  const at::Tensor sent = parts.detach();
  at::Tensor received = at::empty(sent.sizes(), sent.options().requires_grad(false));
  std::vector<std::unique_ptr<Work>> works;
  // Of each pair the lower rank sends first, so that both come to the same two calls where these wait for each other.
  for (int64_t peer = 0; peer < ranks; ++peer) {
    if (peer == own) continue;
    if (own < peer) works.push_back(group.send(sent.select(0, peer), peer, kTag));
    works.push_back(group.receive(received.select(0, peer), peer, kTag));
    if (own > peer) works.push_back(group.send(sent.select(0, peer), peer, kTag));
  }
  received.select(0, own).copy_(sent.select(0, own));
  for (const auto& work : works) work->wait();
  return received;
}

}  // namespace levin
