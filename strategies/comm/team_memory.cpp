#include <levin/strategies/comm/team_memory.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/strategies/comm/futex.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

namespace levin {
namespace {

/// What a rank may hold in the cache while it copies, reduces and copies back, all contributions together ...
constexpr int64_t kStagingBytes = 1 << 20;
/// ... of which each piece is at most so much.
constexpr int64_t kLargestPiece = 64 << 10;
constexpr int64_t kSmallestPiece = 4 << 10;
/// Of all channels that lead to a rank.
constexpr int64_t kChannelBytes = 2 << 20;
constexpr int64_t kLargestChannel = 256 << 10;
constexpr int64_t kSmallestChannel = 16 << 10;

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kSpinOversubscribed{1};

/// At the beginning: proves that an opened segment is the one meant.
struct Preamble {
  alignas(64) uint64_t token;
};

std::string system_error() { return std::strerror(errno); }

uint64_t random_token() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

void SharedDoorbell::ring() {
  rung.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping.load(std::memory_order_seq_cst) != 0) futex_wake_all(rung);
}

/// What a rank says about itself when it joins.
struct TeamMemory::Member {
  alignas(64) std::atomic<int32_t> process;
  cpu_set_t processors;
};

TeamMemory::TeamMemory(int64_t ranks, bool staged)
    : ranks_(ranks),
      piece_bytes_(staged ? std::clamp(kStagingBytes / ranks / 64 * 64, kSmallestPiece, kLargestPiece) : 0),
      channel_capacity_(std::clamp(kChannelBytes / ranks / 64 * 64, kSmallestChannel, kLargestChannel)) {
  LEVIN_CHECK(ranks > 0, "a team has ranks");
  size_t offset = sizeof(Preamble);
  const auto reserve = [&offset](size_t bytes) { return std::exchange(offset, offset + bytes); };
  const auto count = static_cast<size_t>(ranks);
  barriers_ = reserve(kBarriers * sizeof(SharedBarrier::State));
  arrivals_ = reserve(kBarriers * count * sizeof(SharedBarrier::Arrival));
  members_ = reserve(count * sizeof(Member));
  doorbells_ = reserve(count * sizeof(SharedDoorbell));
  slots_ = reserve(2 * count * kSlotBytes);
  channels_ = reserve(count * count * (sizeof(SharedChannel) + channel_capacity_));
  offset = (offset + 4095) / 4096 * 4096;
  staging_ = reserve(2 * count * (count + 1) * piece_bytes_);
  size_ = offset;
}

std::unique_ptr<TeamMemory> TeamMemory::for_threads(int64_t ranks) {
  std::unique_ptr<TeamMemory> memory(new TeamMemory(ranks, false));
  memory->map(-1);
  return memory;
}

std::unique_ptr<TeamMemory> TeamMemory::for_processes(int64_t ranks) {
  std::unique_ptr<TeamMemory> memory(new TeamMemory(ranks, true));
  memory->descriptor_ = memfd_create("levin_shared_memory", MFD_CLOEXEC);
  if (memory->descriptor_ < 0 || ftruncate(memory->descriptor_, static_cast<off_t>(memory->size_)) != 0)
    throw Error("shared_memory", fmt::format("cannot make {} bytes of shared memory; got the system's error '{}'",
                                             memory->size_, system_error()));
  memory->map(memory->descriptor_);
  reinterpret_cast<Preamble*>(memory->base_)->token = random_token();
  return memory;
}

std::string TeamMemory::address() const {
  return fmt::format("{} {} {}", getpid(), descriptor_, reinterpret_cast<const Preamble*>(base_)->token);
}

std::unique_ptr<TeamMemory> TeamMemory::open(const std::string& address, int64_t ranks) {
  int process = 0;
  int descriptor = 0;
  unsigned long long token = 0;
  if (std::sscanf(address.c_str(), "%d %d %llu", &process, &descriptor, &token) != 3)
    throw Error("shared_memory", fmt::format("not the address of a team's memory; got '{}'", address));
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);

  std::unique_ptr<TeamMemory> memory(new TeamMemory(ranks, true));
  memory->descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  std::string problem;
  if (memory->descriptor_ < 0 || fstat(memory->descriptor_, &status) != 0) {
    problem = system_error();
  } else if (static_cast<size_t>(status.st_size) != memory->size_) {
    problem = fmt::format("{} bytes instead of {}", status.st_size, memory->size_);
  } else {
    memory->map(memory->descriptor_);
    if (reinterpret_cast<const Preamble*>(memory->base_)->token != token) problem = "another content";
  }
  if (!problem.empty())
    throw CommunicationError(
        "shared_memory",
        fmt::format("cannot open the memory of the team's first rank, {}; got {}; hint: these ranks must be "
                    "processes of one user on one host that see each other in /proc; otherwise use gloo",
                    path, problem));
  return memory;
}

void TeamMemory::map(int descriptor) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (mapped == MAP_FAILED)
    throw Error("shared_memory", fmt::format("cannot map {} bytes of shared memory; got the system's error '{}'", size_,
                                             system_error()));
  base_ = static_cast<std::byte*>(mapped);
}

TeamMemory::~TeamMemory() {
  if (base_ != nullptr) munmap(base_, size_);
  if (descriptor_ >= 0) close(descriptor_);  // gives back the lock that join() took
}

void TeamMemory::join(int64_t rank) {
  Member& self = member(rank);
  sched_getaffinity(0, sizeof(self.processors), &self.processors);
  if (descriptor_ < 0) return;
  // The kernel gives back a lock on a byte of the segment when the process ends, even by SIGKILL and before its parent
  // has noticed; the others need neither this process's parent nor its name space to see that.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  if (fcntl(descriptor_, F_SETLK, &lock) != 0)
    throw Error("shared_memory",
                fmt::format("cannot join a team as rank {}; got the system's error '{}'; hint: another "
                            "process may have joined as the same rank",
                            rank, system_error()));
  self.process.store(getpid(), std::memory_order_release);
}

bool TeamMemory::is_gone(int64_t rank) const {
  const int32_t process = member(rank).process.load(std::memory_order_acquire);
  if (process == 0 || process == getpid()) return false;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return fcntl(descriptor_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

std::chrono::nanoseconds TeamMemory::spin_time() const {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int64_t rank = 0; rank < ranks_; ++rank) CPU_OR(&all, &all, &member(rank).processors);
  return CPU_COUNT(&all) >= ranks_ ? kSpin : kSpinOversubscribed;
}

TeamMemory::Member& TeamMemory::member(int64_t rank) const { return reinterpret_cast<Member*>(base_ + members_)[rank]; }

SharedBarrier::State& TeamMemory::barrier_state(int64_t index) const {
  return reinterpret_cast<SharedBarrier::State*>(base_ + barriers_)[index];
}

std::span<SharedBarrier::Arrival> TeamMemory::arrivals(int64_t index) const {
  return {reinterpret_cast<SharedBarrier::Arrival*>(base_ + arrivals_) + index * ranks_, static_cast<size_t>(ranks_)};
}

SharedDoorbell& TeamMemory::doorbell(int64_t rank) const {
  return reinterpret_cast<SharedDoorbell*>(base_ + doorbells_)[rank];
}

SharedChannel& TeamMemory::channel(int64_t from, int64_t to) const {
  return *reinterpret_cast<SharedChannel*>(base_ + channels_ +
                                           (from * ranks_ + to) * (sizeof(SharedChannel) + channel_capacity_));
}

std::span<std::byte> TeamMemory::channel_bytes(int64_t from, int64_t to) const {
  return {reinterpret_cast<std::byte*>(&channel(from, to) + 1), static_cast<size_t>(channel_capacity_)};
}

std::byte* TeamMemory::contribution(int64_t turn, int64_t from, int64_t to) const {
  return base_ + staging_ + ((turn * ranks_ + from) * (ranks_ + 1) + to) * piece_bytes_;
}

std::byte* TeamMemory::result(int64_t turn, int64_t rank) const { return contribution(turn, rank, ranks_); }

}  // namespace levin
