#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace levin {

/// Puts something that was in force on one thread in force on the calling one, for as long as what it gives lives.
using ForwardContext = std::function<std::shared_ptr<void>()>;

/// For whoever changes what a forward does through a thread_local of his own, such as a scope around training steps: a
/// forward that runs again in backward finds it as it was. `capture` is called on the thread of such a forward, and may
/// give nullptr. Stays for the life of the process.
void add_forward_context(std::function<ForwardContext()> capture);

/// What is in force on the calling thread.
std::vector<ForwardContext> capture_forward_contexts();

}  // namespace levin
