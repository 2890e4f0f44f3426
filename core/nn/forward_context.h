#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace levin {

/// Puts something that was in force on one thread in force on the calling one, for as long as what it gives lives.
using ForwardContext = std::function<std::shared_ptr<void>()>;

/// Adds something that a forward finds as it was when it runs again in backward: for code that changes forwards through
/// a thread_local of its own, such as a scope around training steps. `capture` is called on the thread of such a
/// forward, and may give nullptr. Stays for the life of the process.
void add_forward_context(std::function<ForwardContext()> capture);

/// Captures what is in force on the calling thread.
std::vector<ForwardContext> capture_forward_contexts();

}  // namespace levin
