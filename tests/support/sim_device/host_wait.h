#pragma once

#include "tests/support/sim_device/ledger.h"

#include <cstddef>
#include <optional>

namespace levin::testing::sim {

/// Counts a wait of the host and refuses it, by an exception that says so, while the calling thread records, or when it
/// is a wait for `stream` and this stream is being recorded.
void host_waits(Wait kind, std::optional<size_t> stream = std::nullopt);

/// The same; then the host knows all work of the stream so far to be done.
void host_waits_for_stream(Wait kind, size_t stream);

}  // namespace levin::testing::sim
