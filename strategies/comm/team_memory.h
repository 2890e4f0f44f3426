#pragma once

#include <levin/strategies/comm/shared_barrier.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace levin {

/// A stream of bytes from one rank to another; its bytes follow it in memory.
struct SharedChannel {
  alignas(64) std::atomic<uint64_t> written;  ///< bytes since the beginning; only the sender changes it
  alignas(64) std::atomic<uint64_t> read;     ///< ... and only the receiver this
};

/// Rung by other ranks when they have written to, or read from, a channel of its rank.
struct SharedDoorbell {
  alignas(64) std::atomic<uint32_t> rung;
  std::atomic<uint32_t> sleeping;

  void ring();
};

/// Memory that the ranks of a team share, and its layout. Pages that nobody writes cost nothing.
class TeamMemory {
 public:
  /// Makes memory for ranks that are threads of this process, without a staging area: they read each other's tensors.
  static std::unique_ptr<TeamMemory> for_threads(int64_t ranks);
  /// Makes memory for ranks that are processes. It has no name in any file system, so that nothing is left behind
  /// however the processes end; the others open it by address() while this object exists.
  static std::unique_ptr<TeamMemory> for_processes(int64_t ranks);
  static std::unique_ptr<TeamMemory> open(const std::string& address, int64_t ranks);
  ~TeamMemory();
  TeamMemory(const TeamMemory&) = delete;
  TeamMemory& operator=(const TeamMemory&) = delete;

  int64_t ranks() const { return ranks_; }
  std::string address() const;

  /// Says that this process is `rank`, until the process ends, however, or this object is destroyed.
  void join(int64_t rank);
  /// Whether a rank that had joined has ended or left since.
  bool is_gone(int64_t rank) const;
  /// Time that a rank should spin for others: none when there are more ranks than processors to run them. Known once
  /// all have joined.
  std::chrono::nanoseconds spin_time() const;

  /// Elements, one a rank, of what every rank says about a call; two generations, used in turn.
  template <class Slot>
  Slot& slot(int64_t generation, int64_t rank) const {
    static_assert(sizeof(Slot) <= kSlotBytes && alignof(Slot) <= 64);
    return *reinterpret_cast<Slot*>(base_ + slots_ + (generation * ranks_ + rank) * kSlotBytes);
  }
  SharedBarrier::State& barrier_state(int64_t index) const;
  std::span<SharedBarrier::Arrival> arrivals(int64_t index) const;
  SharedDoorbell& doorbell(int64_t rank) const;
  SharedChannel& channel(int64_t from, int64_t to) const;
  std::span<std::byte> channel_bytes(int64_t from, int64_t to) const;

  /// Place where `from` leaves what `to` shall reduce, and where a rank leaves results for all; `turn` is 0 or 1.
  std::byte* contribution(int64_t turn, int64_t from, int64_t to) const;
  std::byte* result(int64_t turn, int64_t rank) const;
  /// Bytes of one contribution or result.
  int64_t piece_bytes() const { return piece_bytes_; }

  static constexpr int64_t kSlotBytes = 4096 + 128;
  static constexpr int64_t kBarriers = 2;

 private:
  struct Member;

  TeamMemory(int64_t ranks, bool staged);
  void map(int descriptor);
  Member& member(int64_t rank) const;

  int64_t ranks_;
  int64_t piece_bytes_;
  int64_t channel_capacity_;
  // Offsets from the beginning.
  size_t barriers_, arrivals_, members_, doorbells_, slots_, channels_, staging_, size_;
  std::byte* base_ = nullptr;
  int descriptor_ = -1;  // of memory shared between processes
};

}  // namespace levin
