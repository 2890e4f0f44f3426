#pragma once

#include <levin/core/comm/collective.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace levin {

/// One way round the ring of a pipeline's stages: a rank sends to one neighbour and receives from the other.
///
/// NCCL ignores tags: between two ranks of a group it does one operation after the other, in either direction, and a
/// receive that is posted early holds up each send behind it. So what travels in one direction has a group of its own,
/// and within it, between two ranks, messages must be received in the order in which they are sent.
class StageRing {
 public:
  enum class Direction { kToNext, kToPrevious };

  /// Each call of `make_group` makes a group of all stages; all ranks make rings in the same order. `closed`: messages
  /// also pass between the last stage and the first.
  StageRing(const std::function<std::shared_ptr<Collective>()>& make_group, Direction direction, bool closed);

  /// Tags tell messages apart where the backend knows them.
  std::unique_ptr<Work> send(const at::Tensor& tensor, int64_t tag);
  std::unique_ptr<Work> receive(const at::Tensor& tensor, int64_t tag);

  /// Sends an element round the ring; all ranks call it before their first message. NCCL makes what connects two ranks
  /// at their first message, which blocks both: later each would wait for a message that the other is to send
  /// afterwards.
  void meet(const at::Device& device);

 private:
  std::shared_ptr<Collective> leaving_;
  std::shared_ptr<Collective> arriving_;  ///< another group only where both neighbours are one rank
  Direction direction_;
  bool closed_;
  int64_t to_;
  int64_t from_;
};

}  // namespace levin
