#pragma once

#include <functional>

namespace levin {

class Module;

/// Calls `run`, which calls a hook of the module. Where that registers a name a second time, as hooks that run in every
/// call do, throws levin::Error that says how it is written.
void explain_second_registration(const char* hook, const Module& module, const std::function<void()>& run);

}  // namespace levin
