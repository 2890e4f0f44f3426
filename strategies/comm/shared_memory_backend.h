#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>

namespace c10d {
class Backend;
}

namespace levin {

class SharedMemoryTeam;

/// A backend of c10d, "shared_memory", for CPU tensors between the ranks of a team. Collectives run in the calling
/// thread and are done when the call returns; sending and receiving go on in the background. All reductions that c10d
/// calls SUM, AVG, MIN and MAX. A rank has one backend for its team, used from one thread at a time. `timeout` is how
/// long a call waits for other ranks unless its options say otherwise.
c10::intrusive_ptr<c10d::Backend> make_shared_memory_backend(std::shared_ptr<SharedMemoryTeam> team, int64_t rank,
                                                             std::chrono::milliseconds timeout);

}  // namespace levin
