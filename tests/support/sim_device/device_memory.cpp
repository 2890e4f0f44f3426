#include "tests/support/sim_device/device_memory.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/ledger.h"
#include "tests/support/sim_device/streams.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace levin::testing::sim {
namespace {

constexpr size_t kPage = 4096;
constexpr int kFreshByte = 0xFF;  // NaN in every floating-point type: nobody relies on zeros

bool overlap(const ByteRange& a, const ByteRange& b) { return a.begin < b.end && b.begin < a.end; }
bool contains(const ByteRange& outer, const ByteRange& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

}  // namespace

// --- Block ---

Block::Block(char* base, size_t mapped, c10::DeviceIndex device, size_t stream)
    : base_(base), mapped_(mapped), device_(device), stream_(stream) {}

Block::~Block() { munmap(base_, mapped_); }

void Block::open() {
  if (open_++ == 0) mprotect(base_, mapped_, PROT_READ | PROT_WRITE);
}

void Block::close() {
  if (--open_ == 0) mprotect(base_, mapped_, PROT_NONE);
}

void Block::take(size_t size, uint64_t serial) {
  size_ = size;
  serial_ = serial;
  accesses_.clear();
  recorded_streams_.clear();
  free_after_ = {};
}

const Block::Access* Block::unfinished() const {
  const Streams& streams = Streams::instance();
  const VectorClock& own = streams.clock(stream_);
  const VectorClock& host = streams.host_clock();
  const auto found = std::find_if(accesses_.begin(), accesses_.end(), [&](const Access& access) {
    return access.stream != stream_ &&
           std::max({own[access.stream], host[access.stream], free_after_[access.stream]}) < access.number;
  });
  return found == accesses_.end() ? nullptr : &*found;
}

void Block::touch(ByteRange range, size_t stream, uint64_t number, bool write, const std::string& kernel) {
  if (range.begin == range.end) return;
  const VectorClock& clock = Streams::instance().clock(stream);
  for (const Access& other : accesses_) {
    if (!(write || other.write) || other.stream == stream || clock[other.stream] >= other.number) continue;
    if (overlap(range, other.range))
      Ledger::instance().add_fault(fmt::format("race: {} on {} {} memory that {} on {} may still {}", kernel,
                                               stream_name(stream), write ? "writes" : "reads", other.kernel,
                                               stream_name(other.stream), other.write ? "write" : "read"));
  }
  // Whoever comes after this work comes after what it replaces.
  std::erase_if(accesses_, [&](const Access& other) {
    return contains(range, other.range) && (write || (!other.write && other.stream == stream));
  });
  accesses_.push_back({range, stream, number, write, kernel});
}

void Block::run_late_fills() {
  if (late_fills_.empty()) return;
  open();
  for (const auto& fill : std::exchange(late_fills_, {})) fill();
  close();
}

// --- DeviceMemory ---

DeviceMemory& DeviceMemory::instance() {
  static auto* const memory = new DeviceMemory();
  return *memory;
}

std::unique_ptr<Block> DeviceMemory::take_cached(c10::DeviceIndex device, size_t stream, size_t mapped) {
  auto& free_blocks = cached_[{device, stream}];
  auto taken = free_blocks.end();
  for (auto it = free_blocks.begin(); it != free_blocks.end(); ++it) {
    if ((*it)->mapped() < mapped) continue;
    if (const Block::Access* work = (*it)->unfinished()) {
      Ledger::instance().add_fault(
          fmt::format("missing record_stream: memory of {} is reused while {} on {} may still {} it",
                      stream_name(stream), work->kernel, stream_name(work->stream), work->write ? "write" : "read"));
      taken = it;
      break;
    }
    if ((*it)->mapped() == mapped) taken = it;
  }
  if (taken == free_blocks.end()) return nullptr;
  std::unique_ptr<Block> block = std::move(*taken);
  free_blocks.erase(taken);
  return block;
}

c10::DataPtr DeviceMemory::allocate(size_t size) {
  Streams& streams = Streams::instance();
  const c10::DeviceIndex index = streams.current_device();
  const c10::Device device(kDeviceType, index);
  if (size == 0) return {nullptr, nullptr, &free, device};
  Hardware& hardware = Hardware::instance();
  const std::lock_guard lock(hardware.mutex());
  hardware.start(index);
  Ledger::instance().add_allocation();
  Use& use = uses_[index];
  const size_t stream = index_of(streams.current(index));
  const size_t mapped = (size + kPage - 1) / kPage * kPage;
  std::unique_ptr<Block> block = take_cached(index, stream, mapped);
  if (block == nullptr) {
    const auto limit = static_cast<int64_t>(hardware.options().memory);
    const auto needed = static_cast<int64_t>(mapped);
    if (use.reserved + needed > limit) emptyCache();
    TORCH_CHECK_WITH(OutOfMemoryError, use.reserved + needed <= limit, "sim: out of memory on sim:", int{index},
                     ": tried to allocate ", size, " bytes; ", limit - use.reserved, " of ", limit, " are free");
    void* const base = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, base != MAP_FAILED, "sim: the host has no memory for the simulated device");
    block = std::make_unique<Block>(static_cast<char*>(base), mapped, index, stream);
    use.reserved += needed;
  }
  block->take(size, next_serial_++);
  block->open();
  std::memset(block->base(), kFreshByte, block->mapped());
  block->close();
  use.allocated += static_cast<int64_t>(size);
  use.peak = std::max(use.peak, use.allocated);
  char* const base = block->base();
  blocks_[base] = std::move(block);
  return {base, base, &free, device};
}

void DeviceMemory::free(void* pointer) {
  const std::lock_guard lock(Hardware::instance().mutex());
  DeviceMemory& memory = instance();
  const auto found = memory.blocks_.find(static_cast<char*>(pointer));
  if (found == memory.blocks_.end()) return;
  std::unique_ptr<Block> block = std::move(found->second);
  memory.blocks_.erase(found);
  block->late_fills_.clear();
  for (const size_t stream : block->recorded_streams_) block->free_after_.merge(Streams::instance().clock(stream));
  memory.uses_[block->device()].allocated -= static_cast<int64_t>(block->size());
  memory.cached_[{block->device(), block->stream()}].push_back(std::move(block));
}

c10::DeleterFnPtr DeviceMemory::raw_deleter() const { return &free; }

void DeviceMemory::copy_data(void* to, const void* from, size_t count) const {
  const std::lock_guard lock(Hardware::instance().mutex());
  Block* const blocks[] = {find(to), find(from)};
  for (Block* block : blocks)
    if (block != nullptr) {
      block->run_late_fills();
      block->open();
    }
  std::memcpy(to, from, count);
  for (Block* block : blocks)
    if (block != nullptr) block->close();
}

void DeviceMemory::emptyCache(c10::MempoolId_t) {
  const std::lock_guard lock(Hardware::instance().mutex());
  for (const auto& [key, free_blocks] : cached_)
    for (const auto& block : free_blocks) uses_[block->device()].reserved -= static_cast<int64_t>(block->mapped());
  cached_.clear();
}

void DeviceMemory::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  const std::lock_guard lock(Hardware::instance().mutex());
  if (Block* block = find(pointer.get())) block->recorded_streams_.push_back(index_of(stream));
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex device) {
  Hardware::instance().check_index(device);
  const std::lock_guard lock(Hardware::instance().mutex());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocated_bytes[kAll].current = uses_[device].allocated;
  stats.allocated_bytes[kAll].peak = uses_[device].peak;
  stats.reserved_bytes[kAll].current = uses_[device].reserved;
  return stats;
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex device) {
  Hardware::instance().check_index(device);
  const std::lock_guard lock(Hardware::instance().mutex());
  uses_[device].peak = uses_[device].allocated;
}

std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex device) {
  Hardware::instance().check_index(device);
  const std::lock_guard lock(Hardware::instance().mutex());
  const size_t total = Hardware::instance().options().memory;
  return {total - static_cast<size_t>(uses_[device].reserved), total};
}

Block* DeviceMemory::find(const void* address) const {
  if (address == nullptr) return nullptr;
  auto found = blocks_.upper_bound(static_cast<const char*>(address));
  if (found == blocks_.begin()) return nullptr;
  --found;
  Block* const block = found->second.get();
  return static_cast<const char*>(address) < block->base() + block->mapped() ? block : nullptr;
}

}  // namespace levin::testing::sim
