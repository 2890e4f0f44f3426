#include "tests/support/sim_device/streams.h"

#include "tests/support/sim_device/hardware.h"

#include <fmt/format.h>

#include <array>
#include <mutex>
#include <utility>
#include <vector>

namespace levin::testing::sim {
namespace {

thread_local c10::DeviceIndex thread_device = 0;
thread_local std::array<c10::StreamId, kMaximumDevices> thread_streams{};

c10::Stream make_stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id);
}

}  // namespace

size_t index_of(const c10::Stream& stream) {
  return static_cast<size_t>(stream.device_index() * kStreamsPerDevice + stream.id());
}

std::string stream_name(size_t stream) {
  return fmt::format("sim:{} stream {}", stream / kStreamsPerDevice, stream % kStreamsPerDevice);
}

Streams& Streams::instance() {
  static auto* const streams = new Streams();
  return *streams;
}

c10::DeviceIndex Streams::current_device() const { return thread_device; }

void Streams::set_current_device(c10::DeviceIndex device) {
  Hardware::instance().check_index(device);
  thread_device = device;
}

c10::Stream Streams::current(c10::DeviceIndex device) const { return make_stream(device, thread_streams.at(device)); }

c10::Stream Streams::exchange_current(const c10::Stream& stream) {
  return make_stream(stream.device_index(), std::exchange(thread_streams.at(stream.device_index()), stream.id()));
}

c10::Stream Streams::from_pool(c10::DeviceIndex device) {
  const std::lock_guard lock(Hardware::instance().mutex());
  return make_stream(device, 1 + next_in_pool_[device]++ % (kStreamsPerDevice - 1));
}

const VectorClock& Streams::clock(size_t stream) const { return states_[stream].clock; }

uint64_t Streams::begin_work(size_t stream) {
  states_[stream].clock.merge(host_);
  return states_[stream].clock.advance(stream);
}

void Streams::order_after(size_t stream, const VectorClock& clock) { states_[stream].clock.merge(clock); }

void Streams::run_late(size_t stream, uint64_t work, std::span<const char> bytes, std::function<void()> copy) {
  states_[stream].late.push_back({work, bytes, std::move(copy)});
}

void Streams::make_copies_of(std::span<const char> bytes, const VectorClock& before) {
  for (size_t i = 0; i < kMaximumStreams; ++i) {
    std::vector<std::function<void()>> due;
    std::erase_if(states_[i].late, [&](LateCopy& late) {
      const bool overlaps =
          late.bytes.data() < bytes.data() + bytes.size() && bytes.data() < late.bytes.data() + late.bytes.size();
      if (late.work > before[i] || !overlaps) return false;
      due.push_back(std::move(late.copy));
      return true;
    });
    for (const auto& copy : due) copy();
  }
}

void Streams::host_learns(const VectorClock& clock) {
  host_.merge(clock);
  for (size_t i = 0; i < kMaximumStreams; ++i) {
    auto& late = states_[i].late;
    while (!late.empty() && late.front().work <= host_[i]) {
      const std::function<void()> copy = std::move(late.front().copy);
      late.pop_front();
      copy();
    }
  }
}

bool Streams::host_knows(const VectorClock& clock) const {
  for (size_t i = 0; i < kMaximumStreams; ++i)
    if (clock[i] > host_[i]) return false;
  return true;
}

bool Streams::poll(const VectorClock& clock, bool& asked) {
  if (host_knows(clock)) return true;
  if (Hardware::instance().options().copies == CopyTiming::kLate && !std::exchange(asked, true)) return false;
  host_learns(clock);
  return true;
}

bool Streams::poll(size_t stream) {
  State& state = states_[stream];
  bool asked = state.asked == state.clock[stream] && state.asked > 0;
  state.asked = state.clock[stream];
  return poll(VectorClock(state.clock), asked);
}

}  // namespace levin::testing::sim
