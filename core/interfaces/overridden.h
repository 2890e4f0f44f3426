#pragma once

namespace levin {

class Module;

/// Return whether a module's class, or one that it derives from, has such a function of its own.
bool overrides_training_step(const Module& module);
bool overrides_validation_step(const Module& module);
bool overrides_predict_step(const Module& module);
bool overrides_optimizer_zero_grad(const Module& module);

}  // namespace levin
