#include "tests/support/sim_device/recording.h"

#include "tests/support/sim_device/generator.h"
#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/streams.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace levin::testing::sim {
namespace {

uint64_t next_recording = 1;
Recording* recording_of_stream[kMaximumStreams] = {};
thread_local Recording* recording_of_thread = nullptr;

}  // namespace

Recording::Recording(const c10::Stream& stream) : id_(next_recording++), streams_{index_of(stream)} {
  TORCH_CHECK(recording_of_thread == nullptr, "sim: this thread is recording already");
  const std::lock_guard lock(Hardware::instance().mutex());
  TORCH_CHECK(stream.id() != 0, "sim: the default stream cannot be recorded");
  first_serial_ = DeviceMemory::instance().next_serial();
  for (c10::DeviceIndex i = 0; i < Hardware::instance().options().devices; ++i)
    generator_states_.push_back(DeviceGenerator::default_of(i).get_state().clone());
  recording_of_stream[streams_.front()] = recording_of_thread = this;
}

Recording::~Recording() {
  if (!has_ended_) finish();
}

void Recording::finish() {
  has_ended_ = true;
  recording_of_thread = nullptr;
  const std::lock_guard lock(Hardware::instance().mutex());
  for (const size_t stream : streams_) recording_of_stream[stream] = nullptr;
  for (const auto& [serial, saved] : saved_) {
    Block* block = DeviceMemory::instance().find(saved.base);
    if (block == nullptr || block->serial() != serial) continue;
    block->open();
    std::memcpy(block->base(), saved.bytes.data(), saved.bytes.size());
    block->close();
  }
  for (size_t i = 0; i < generator_states_.size(); ++i)
    at::Generator(DeviceGenerator::default_of(static_cast<c10::DeviceIndex>(i))).set_state(generator_states_[i]);
}

RecordedWork Recording::end() {
  finish();
  TORCH_CHECK(is_valid_, "sim: the recording is invalid because of an operation that was not permitted in it");
  return std::move(work_);
}

Recording* Recording::of_thread() { return recording_of_thread; }

Recording* Recording::of_stream(size_t stream) { return recording_of_stream[stream]; }

void Recording::wait_for_event(size_t stream, uint64_t id) {
  Recording* own = of_stream(stream);
  if (own != nullptr) {
    if (own->id_ == id) return;
    own->invalidate();
    TORCH_CHECK(
        false,
        "sim: operation not permitted while a stream is being recorded: to wait for an event that is not part of ",
        "the recording");
  }
  const auto found = std::find_if(std::begin(recording_of_stream), std::end(recording_of_stream),
                                  [&](const Recording* other) { return other != nullptr && other->id_ == id; });
  if (found == std::end(recording_of_stream)) return;
  (*found)->streams_.push_back(stream);
  recording_of_stream[stream] = *found;
}

void Recording::before_write(Block& block) {
  if (block.serial() >= first_serial_ || saved_.count(block.serial()) > 0) return;
  block.run_late_fills();
  block.open();
  saved_[block.serial()] = {block.base(), std::string(block.base(), block.size())};
  block.close();
}

}  // namespace levin::testing::sim
