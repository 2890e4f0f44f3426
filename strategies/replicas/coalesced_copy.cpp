#include <levin/strategies/replicas/coalesced_copy.h>

#include <levin/core/base/error.h>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>

#include <map>
#include <utility>

namespace levin {
namespace {

/// Of one transfer: what it takes on both devices for its time is bounded.
constexpr int64_t kMostBytes = int64_t{64} << 20;

class Transfer {
 public:
  void add(const at::Tensor& from, const at::Tensor& to) {
    if (bytes_ > 0 && bytes_ + static_cast<int64_t>(from.nbytes()) > kMostBytes) send();
    bytes_ += static_cast<int64_t>(from.nbytes());
    flat_.push_back(from.reshape(-1));
    to_.push_back(to);
  }
  void send() {
    if (to_.empty()) return;
    const at::Tensor there = at::cat(flat_).to(to_.front().device(), /*non_blocking=*/true);
    std::vector<at::Tensor> parts;
    int64_t start = 0;
    for (const at::Tensor& target : to_) {
      parts.push_back(there.narrow(0, start, target.numel()).view(target.sizes()));
      start += target.numel();
    }
    at::_foreach_copy_(to_, parts);
    flat_.clear();
    to_.clear();
    bytes_ = 0;
  }

 private:
  std::vector<at::Tensor> flat_;
  std::vector<at::Tensor> to_;
  int64_t bytes_ = 0;
};

}  // namespace

void copy_coalesced(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  LEVIN_CHECK(from.size() == to.size(), "there is a target for each tensor");
  std::map<at::ScalarType, Transfer> transfers;
  for (size_t i = 0; i < from.size(); ++i) {
    LEVIN_CHECK(from[i].sizes() == to[i].sizes() && from[i].scalar_type() == to[i].scalar_type(),
                "the target is of the tensor's size and type");
    transfers[from[i].scalar_type()].add(from[i], to[i]);
  }
  for (auto& [type, transfer] : transfers) transfer.send();
}

}  // namespace levin
