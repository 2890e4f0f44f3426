#include <levin/strategies/comm/shared_memory_team.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/reduce_elements.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// Has room for an address of TeamMemory.
using AddressText = std::array<char, 128>;

/// Ranks that are processes. Tensors go through the staging area piece by piece, in steps with one barrier each: in a
/// step a rank writes its next piece, works on the one that all ranks wrote in the step before, and takes the results
/// of the one before that. Two halves of the staging area, used in turn, keep these apart. Pieces are small enough to
/// stay in the processors' caches.
class ProcessTeam : public SharedMemoryTeam {
 public:
  /// Returns when all ranks have joined. A rank that ends before it has is not seen in the memory: `check` is called
  /// while waiting, and throws when there is no use in that.
  ProcessTeam(std::unique_ptr<TeamMemory> team_memory, const Caller& caller, const std::function<void()>& check)
      : SharedMemoryTeam(std::move(team_memory)) {
    memory().join(caller.rank);
    const auto is_gone = [this](int64_t rank) { return memory().is_gone(rank); };
    main_barrier().set_is_gone([&](int64_t rank) {
      check();
      return is_gone(rank);
    });
    main_barrier().wait(caller.rank, "forming the team", caller.timeout, member(caller).meeting);
    main_barrier().set_is_gone(is_gone);
    set_spin_time();
  }

  std::shared_ptr<SharedMemoryTeam> subteam(const Caller& caller, std::span<const int64_t> ranks) override {
    const int64_t position = position_in(ranks, caller.rank);
    if (ranks.empty()) return nullptr;
    const auto count = static_cast<int64_t>(ranks.size());
    std::unique_ptr<TeamMemory> segment;
    AddressText text{};
    if (position == 0) {
      segment = TeamMemory::for_processes(count);
      const std::string address = segment->address();
      std::copy_n(address.begin(), std::min(address.size(), text.size() - 1), text.begin());
    }
    broadcast(caller, {text.data(), static_cast<int64_t>(text.size()), at::kByte}, ranks[0]);
    std::shared_ptr<SharedMemoryTeam> team;
    if (position > 0) segment = TeamMemory::open(text.data(), count);
    if (position >= 0)
      team = std::make_shared<ProcessTeam>(std::move(segment), Caller{position, caller.timeout},
                                           [this] { throw_if_aborted(); });
    barrier(caller);
    return team;
  }

 protected:
  void run_large(const Caller& caller, const Header& header, const Reduction& reduction) override
      LEVIN_REQUIRES(member(caller).calling) {
    const int64_t self = caller.rank;
    const auto element = static_cast<int64_t>(c10::elementSize(header.type));
    const int64_t piece = memory().piece_bytes() / element;
    const int64_t pieces = (reduction.slice + piece - 1) / piece;
    const bool shares = header.operation != Operation::kReduceScatter;
    int64_t& turn = member(caller).turn;
    auto& sources = member(caller).sources;
    auto& outputs = member(caller).outputs;

    struct Range {
      int64_t offset;  // in bytes
      int64_t count;   // of elements
    };
    const auto range = [&](int64_t rank, int64_t index) {
      const int64_t begin = std::min(reduction.count, rank * reduction.slice + index * piece);
      const int64_t end = std::min({reduction.count, (rank + 1) * reduction.slice, begin + piece});
      return Range{begin * element, std::max<int64_t>(end - begin, 0)};
    };

    const int64_t steps = pieces + (shares ? 2 : 1);
    for (int64_t step = 0; step < steps; ++step) {
      if (step < pieces) {
        for (int64_t rank = 0; rank < size(); ++rank) {
          const auto [offset, count] = range(rank, step);
          if (rank == self || count == 0) continue;
          std::memcpy(memory().contribution((turn + step) % 2, self, rank), reduction.source + offset, count * element);
        }
      }
      if (const int64_t index = step - 1; index >= 0 && index < pieces) {
        const int64_t half = (turn + index) % 2;
        const auto [offset, count] = range(self, index);
        for (int64_t rank = 0; rank < size(); ++rank)
          sources[rank] = rank == self ? reduction.source + offset : memory().contribution(half, rank, self);
        outputs.clear();
        if (reduction.own_slice != nullptr) outputs.push_back(reduction.own_slice + index * piece * element);
        if (reduction.whole != nullptr) outputs.push_back(reduction.whole + offset);
        if (shares) outputs.push_back(memory().result(half, self));
        if (count > 0) reduce_elements(sources, outputs, count, header.type, header.op);
      }
      if (const int64_t index = step - 2; shares && index >= 0 && reduction.whole != nullptr) {
        for (int64_t rank = 0; rank < size(); ++rank) {
          const auto [offset, count] = range(rank, index);
          if (rank == self || count == 0) continue;
          std::memcpy(reduction.whole + offset, memory().result((turn + index) % 2, rank), count * element);
        }
      }
      if (step == 0)
        meet(caller, header);
      else if (step + 1 < steps)
        wait(caller, header);
    }
    turn += pieces;
  }

  /// As a reduction, gathering and scattering the parts of a piece.
  void run(const Caller& caller, const Header& header, const ScaledSum& sum) override
      LEVIN_REQUIRES(member(caller).calling) {
    const int64_t self = caller.rank;
    const auto element = static_cast<int64_t>(c10::elementSize(header.type));
    const int64_t piece = memory().piece_bytes() / element;
    const int64_t pieces = (sum.slice + piece - 1) / piece;
    int64_t& turn = member(caller).turn;
    auto& sources = member(caller).sources;
    auto& outputs = member(caller).outputs;
    outputs.resize(2);

    const auto for_parts_in = [&](int64_t rank, int64_t index, const auto& visit) {
      const int64_t begin = rank * sum.slice + index * piece;
      sum.for_parts_in(begin, std::min({header.count, (rank + 1) * sum.slice, begin + piece}), visit);
    };
    const auto place = [&](size_t part, int64_t offset) {
      return static_cast<std::byte*>(sum.parts[part].data) + offset;
    };

    for (int64_t step = 0; step < pieces + 2; ++step) {
      for (int64_t rank = 0; step < pieces && rank < size(); ++rank) {
        if (rank == self) continue;
        std::byte* const to = memory().contribution((turn + step) % 2, self, rank);
        for_parts_in(rank, step, [&](size_t part, int64_t offset, int64_t at, int64_t count) {
          std::memcpy(to + at, place(part, offset), count * element);
        });
      }
      if (const int64_t index = step - 1; index >= 0 && index < pieces) {
        const int64_t half = (turn + index) % 2;
        const auto add = [&](size_t part, int64_t offset, int64_t at,
                             int64_t count) LEVIN_REQUIRES(member(caller).calling) {
          for (int64_t rank = 0; rank < size(); ++rank)
            sources[rank] = rank == self ? place(part, offset) : memory().contribution(half, rank, self) + at;
          outputs[0] = place(part, offset);
          outputs[1] = memory().result(half, self) + at;
          add_scaled_elements(sources, outputs, count, header.type, sum.factor);
        };
        for_parts_in(self, index, add);
      }
      for (int64_t rank = 0; step >= 2 && rank < size(); ++rank) {
        if (rank == self) continue;
        const std::byte* const from = memory().result((turn + step) % 2, rank);
        for_parts_in(rank, step - 2, [&](size_t part, int64_t offset, int64_t at, int64_t count) {
          std::memcpy(place(part, offset), from + at, count * element);
        });
      }
      if (step == 0)
        meet(caller, header);
      else if (step < pieces + 1)
        wait(caller, header);
    }
    turn += pieces;
  }

  void run_large(const Caller& caller, const Header& header, const Copying& copying) override
      LEVIN_REQUIRES(member(caller).calling) {
    // The contributions of a rank lie one after the other: here they are one buffer.
    const int64_t chunk = memory().piece_bytes() * size();
    const int64_t chunks = (copying.bytes + chunk - 1) / chunk;
    int64_t& turn = member(caller).turn;
    for (int64_t step = 0; step <= chunks; ++step) {
      if (step < chunks && copying.source != nullptr)
        std::memcpy(memory().contribution((turn + step) % 2, caller.rank, 0), copying.source + step * chunk,
                    std::min(chunk, copying.bytes - step * chunk));
      if (const int64_t index = step - 1; index >= 0)
        for (const auto& part : copying.parts) take(part, index * chunk, chunk, (turn + index) % 2, caller, copying);
      if (step == 0)
        meet(caller, header);
      else if (step < chunks)
        wait(caller, header);
    }
    turn += chunks;
  }

 private:
  /// Copies what the chunk of all sources that begins at `start` has of a part.
  void take(const Copying::Part& part, int64_t start, int64_t chunk, int64_t half, const Caller& caller,
            const Copying& copying) {
    const int64_t begin = std::max(part.offset, start);
    const int64_t end = std::min(part.offset + part.bytes, start + chunk);
    if (begin >= end) return;
    std::byte* to = part.to + (begin - part.offset);
    const std::byte* from =
        part.from == caller.rank ? copying.source + begin : memory().contribution(half, part.from, 0) + (begin - start);
    if (from != to) std::memcpy(to, from, end - begin);
  }
};

}  // namespace

std::shared_ptr<SharedMemoryTeam> make_process_team(c10d::Store& store, int64_t rank, int64_t ranks,
                                                    std::chrono::milliseconds timeout) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw Error("comm", fmt::format("no such rank; got rank {} of {}; valid: 0 to {}", rank, ranks,
                                    std::max<int64_t>(ranks, 1) - 1));
  const std::string key = "shared_memory_team";
  std::unique_ptr<TeamMemory> memory;
  if (rank == 0) {
    memory = TeamMemory::for_processes(ranks);
    store.set(key, memory->address());
  } else {
    try {
      store.wait({key}, timeout);
    } catch (const RankFailedError&) {
      throw;
    } catch (const std::exception& error) {
      throw CommunicationError("shared_memory", fmt::format("rank 0 did not offer its memory within {}; got '{}'",
                                                            format_seconds(timeout), c10d_message(error)));
    }
    memory = TeamMemory::open(store.get_to_str(key), ranks);
  }
  // The key is there: asking for it again only asks whether waiting is in vain.
  return std::make_shared<ProcessTeam>(std::move(memory), SharedMemoryTeam::Caller{rank, timeout},
                                       [&] { store.wait({key}, timeout); });
}

}  // namespace levin
