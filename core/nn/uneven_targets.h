#pragma once

namespace levin::detail {

/// Notes that a mean loss over the positions of `context` left targets out or weighed them, in this thread.
void note_uneven_targets();
/// Whether one has since the last call.
bool take_uneven_targets();

}  // namespace levin::detail
