#pragma once

#include <levin/core/connectors/data_connector.h>
#include <levin/core/interfaces/module.h>

#include <memory>
#include <optional>
#include <string>

namespace levin {

/// The arguments of a call of the trainer.
struct RunRequest {
  Stage stage = Stage::kFit;
  std::shared_ptr<Module> module;
  std::shared_ptr<DataModule> data;
  StageLoaders loaders;
  std::string ckpt;
  bool tune = false;                            ///< of a fit: tuners run, and nothing is trained
  std::optional<bool> return_predictions = {};  ///< unset: unless a callback takes them
};

}  // namespace levin
