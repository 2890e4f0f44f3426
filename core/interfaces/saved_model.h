#pragma once

#include <levin/core/base/state.h>

#include <functional>
#include <string>

namespace levin {

class Module;

/// The model of a checkpoint, as far as it is known.
struct SavedModel {
  const State& tensors;                     ///< a saved module_state
  std::string path = {};                    ///< of the checkpoint
  const State* hyper_parameters = nullptr;  ///< class, name and options of the module that was saved
};

/// Throws levin::Error where a module lacks tensors that were saved, has others, or has them in another shape. It names
/// the first of each, and the module that was saved, where it is known, as well as this one.
void check_saved_model(const Module& module, const SavedModel& saved);

/// Calls `load`, which checks the tensors and loads them. An error of tensors that are another model's names that
/// model.
void load_saved_model(const Module& module, const SavedModel& saved, const std::function<void(const State&)>& load);

}  // namespace levin
