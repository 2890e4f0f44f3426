#include "tests/support/sim_device/host_wait.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/streams.h"

#include <c10/util/Exception.h>

#include <mutex>

namespace levin::testing::sim {

void host_waits(Wait kind, std::optional<size_t> stream) {
  if (stream) Hardware::instance().check_alive(static_cast<c10::DeviceIndex>(*stream / kStreamsPerDevice));
  {
    const std::lock_guard lock(Hardware::instance().mutex());
    Recording* recording = Recording::of_thread();
    if (recording == nullptr && stream) recording = Recording::of_stream(*stream);
    if (recording != nullptr) {
      recording->invalidate();
      TORCH_CHECK(false, "sim: operation not permitted while a stream is being recorded: ", name_of(kind));
    }
  }
  Ledger::instance().add_wait(kind);
}

void host_waits_for_stream(Wait kind, size_t stream) {
  host_waits(kind, stream);
  const std::lock_guard lock(Hardware::instance().mutex());
  Streams& streams = Streams::instance();
  streams.host_learns(VectorClock(streams.clock(stream)));
}

}  // namespace levin::testing::sim
