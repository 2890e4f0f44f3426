#include <levin/strategies/comm/shared_memory_team.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/reduce_elements.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace levin {
namespace {

/// Ranks that are threads. Between the two barriers of a call every rank reads, and where the result is for all writes,
/// the tensors of the others. No rank may leave its call, and so free its tensor, in that time: the second barrier
/// cannot be aborted and does not time out. It need not: all ranks have come and none waits for anything any more.
class ThreadTeam : public SharedMemoryTeam {
 public:
  explicit ThreadTeam(int64_t ranks)
      : SharedMemoryTeam(TeamMemory::for_threads(ranks)), finish_(memory().barrier_state(1), memory().arrivals(1)) {
    for (int64_t rank = 0; rank < ranks; ++rank) memory().join(rank);
    set_spin_time();
  }

  std::shared_ptr<SharedMemoryTeam> subteam(const Caller& caller, std::span<const int64_t> ranks) override {
    const int64_t position = position_in(ranks, caller.rank);
    if (ranks.empty()) return nullptr;
    std::shared_ptr<SharedMemoryTeam> team;
    if (position == 0) team = std::make_shared<ThreadTeam>(static_cast<int64_t>(ranks.size()));
    // The address of the first rank's pointer, which lives until all have passed the second barrier.
    auto* first = &team;
    broadcast(caller, {&first, sizeof(first), at::kByte}, ranks[0]);
    if (position > 0) team = *first;
    finish(caller, Operation::kBroadcast);
    return team;
  }

 protected:
  void run_large(const Caller& caller, const Header& header, const Reduction& reduction) override
      LEVIN_REQUIRES(member(caller).calling) {
    Slot& mine = slot(caller, caller.rank);
    mine.source = reduction.source;
    mine.result = reduction.whole;
    meet(caller, header);

    const auto element = static_cast<int64_t>(c10::elementSize(header.type));
    const int64_t begin = std::min(reduction.count, caller.rank * reduction.slice);
    const int64_t end = std::min(reduction.count, begin + reduction.slice);
    auto& sources = member(caller).sources;
    auto& outputs = member(caller).outputs;
    outputs.clear();
    if (reduction.own_slice != nullptr) outputs.push_back(reduction.own_slice);
    for (int64_t rank = 0; rank < size(); ++rank) {
      const Slot& other = slot(caller, rank);
      sources[rank] = other.source + begin * element;
      if (other.result != nullptr) outputs.push_back(other.result + begin * element);
    }
    reduce_elements(sources, outputs, end - begin, header.type, header.op);
    finish(caller, header.operation);
  }

  void run(const Caller& caller, const Header& header, const ScaledSum& sum) override
      LEVIN_REQUIRES(member(caller).calling) {
    meet(caller, header);
    check_sizes(caller, header.operation, sum);
    const int64_t begin = std::min(header.count, caller.rank * sum.slice);
    const int64_t end = std::min(header.count, begin + sum.slice);
    auto& sources = member(caller).sources;
    auto& outputs = member(caller).outputs;
    outputs.resize(size());
    const auto add = [&](size_t part, int64_t offset, int64_t, int64_t count) LEVIN_REQUIRES(member(caller).calling) {
      for (int64_t rank = 0; rank < size(); ++rank) {
        outputs[rank] = static_cast<std::byte*>(slot(caller, rank).parts[part].data) + offset;
        sources[rank] = outputs[rank];
      }
      add_scaled_elements(sources, outputs, count, header.type, sum.factor);
    };
    sum.for_parts_in(begin, end, add);
    finish(caller, header.operation);
  }

  void run_large(const Caller& caller, const Header& header, const Copying& copying) override
      LEVIN_REQUIRES(member(caller).calling) {
    slot(caller, caller.rank).source = copying.source;
    meet(caller, header);
    for (const auto& part : copying.parts) {
      const std::byte* from = slot(caller, part.from).source + part.offset;
      if (from != part.to) std::memcpy(part.to, from, part.bytes);
    }
    finish(caller, header.operation);
  }

 private:
  /// Throws on all ranks or on none, when all have looked.
  void check_sizes(const Caller& caller, Operation operation, const ScaledSum& sum)
      LEVIN_REQUIRES(member(caller).calling) {
    const Elements* const expected = slot(caller, 0).parts;
    for (int64_t rank = 1; rank < size(); ++rank)
      for (size_t part = 0; part < sum.parts.size(); ++part)
        if (const int64_t count = slot(caller, rank).parts[part].count; count != expected[part].count) {
          const std::string message = fmt::format(
              "tensor {} of a list has {} elements on rank 0 and {} on rank {}; valid: the same on all ranks", part,
              expected[part].count, count, rank);
          finish(caller, operation);
          throw Error("comm", message);
        }
  }

  void finish(const Caller& caller, Operation operation) {
    finish_.wait(caller.rank, name_of(operation), SharedBarrier::kForever, member(caller).stepping);
  }

  SharedBarrier finish_;
};

}  // namespace

std::shared_ptr<SharedMemoryTeam> make_thread_team(int64_t ranks) {
  if (ranks < 1) throw Error("comm", fmt::format("a team needs ranks; got {}; valid: 1 and more", ranks));
  return std::make_shared<ThreadTeam>(ranks);
}

}  // namespace levin
