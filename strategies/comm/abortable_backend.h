#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace levin {

/// Tags of send and receive from here on are the backend's own.
constexpr int kFirstReservedTag = 1 << 30;

/// Gives a backend that lacks it (Gloo) an `abort`: every operation under way ends with an error at once, whoever waits
/// for it (a Work or, as c10d's Reducer does, its Future), and later operations throw. Whatever an operation
/// fails with is thrown as a c10::DistError. What the aborted backend's own threads are still stuck in ends with its
/// time-out, or once the other ranks have closed their connections; until then its tensors stay alive, and destroying
/// the group does not wait for it.
c10::intrusive_ptr<c10d::Backend> make_abortable(c10::intrusive_ptr<c10d::Backend> backend);

}  // namespace levin
