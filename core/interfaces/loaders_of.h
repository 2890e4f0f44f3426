#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/events.h>
#include <levin/core/data/data_loader.h>

namespace levin {

/// Returns the loaders of a stage, fit's being those of training. `hooks`: a data module, or a module that has the data
/// hooks.
template <class Hooks>
DataLoaders loaders_of(Hooks& hooks, Stage stage) {
  switch (stage) {
    case Stage::kFit:
      return hooks.train_dataloader();
    case Stage::kValidate:
      return hooks.val_dataloader();
    case Stage::kTest:
      return hooks.test_dataloader();
    case Stage::kPredict:
      return hooks.predict_dataloader();
  }
  throw InternalError("unknown stage");
}

}  // namespace levin
