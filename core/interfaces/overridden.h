#pragma once

namespace levin {

class Module;

/// Returns whether a module's class, or one that it derives from, has a validation_step of its own.
bool overrides_validation_step(const Module& module);

}  // namespace levin
