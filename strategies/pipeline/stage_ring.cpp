#include <levin/strategies/pipeline/stage_ring.h>

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

namespace levin {

StageRing::StageRing(const std::function<std::shared_ptr<Collective>()>& make_group, Direction direction, bool closed)
    : leaving_(make_group()), arriving_(leaving_), direction_(direction), closed_(closed) {
  const int64_t size = leaving_->world_size();
  if (closed_ && size == 2) {
    arriving_ = make_group();
    // What leaves one rank arrives at the other.
    if (leaving_->rank() == 1) std::swap(leaving_, arriving_);
  }
  const int64_t next = (leaving_->rank() + 1) % size;
  const int64_t previous = (leaving_->rank() + size - 1) % size;
  to_ = direction == Direction::kToNext ? next : previous;
  from_ = direction == Direction::kToNext ? previous : next;
}

std::unique_ptr<Work> StageRing::send(const at::Tensor& tensor, int64_t tag) {
  return leaving_->send(tensor, to_, tag);
}

std::unique_ptr<Work> StageRing::receive(const at::Tensor& tensor, int64_t tag) {
  return arriving_->receive(tensor, from_, tag);
}

void StageRing::meet(const at::Device& device) {
  const c10::DeviceGuard current(device);
  const int64_t own = leaving_->rank();
  const int64_t last = leaving_->world_size() - 1;
  const at::Tensor element = at::zeros({1}, device);
  // One pair after the other, along the chain.
  for (int64_t stage = 0; stage <= last; ++stage) {
    const int64_t sender = direction_ == Direction::kToNext ? stage : last - stage;
    const bool wraps = stage == last;
    if (wraps && !closed_) break;
    const int64_t receiver =
        direction_ == Direction::kToNext ? (sender + 1) % (last + 1) : (sender + last) % (last + 1);
    if (own == sender) send(element, 0)->wait();
    if (own == receiver) receive(element, 0)->wait();
  }
}

}  // namespace levin
