#pragma once

namespace levin::detail {

/// Notes that a loss over the positions of `context` left targets out, in this thread.
void note_ignored_targets();
/// Whether one has since the last call.
bool take_ignored_targets();

}  // namespace levin::detail
