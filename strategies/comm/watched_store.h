#pragma once

#include <levin/core/comm/rank_failure.h>

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <optional>

namespace c10d {
class Store;
}

namespace levin {

/// Says why there is no use in waiting for other ranks any longer; nothing while there is. Asked every so often by a
/// rank that waits, on its own thread.
using WaitingInVain = std::function<std::optional<RankFailure>()>;

/// Returns the same store with waits that end with a RankFailedError once they are in vain: c10d's own end with their
/// time-out alone, which may be half an hour. For all that waits for values of other ranks in a store, c10d's backends
/// included.
c10::intrusive_ptr<c10d::Store> make_watched_store(c10::intrusive_ptr<c10d::Store> store, WaitingInVain in_vain);

}  // namespace levin
