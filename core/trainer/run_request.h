#pragma once

#include <levin/core/connectors/data_connector.h>
#include <levin/core/interfaces/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace levin {

struct TrainerComponents;

/// The arguments of a call of the trainer.
struct RunRequest {
  Stage stage = Stage::kFit;
  std::shared_ptr<Module> module;
  std::shared_ptr<DataModule> data;
  StageLoaders loaders;
  std::string ckpt;
  bool tune = false;                            ///< of a fit: tuners run, and nothing is trained
  std::optional<bool> return_predictions = {};  ///< unset: unless a callback takes them
  /// Of a fit, its steps are the caller's (Engine); of a prediction, all that it does (Trainer::run_on_ranks). There
  /// are no data of the call; signals are left alone, and nothing but warnings is printed.
  bool is_driven = false;
  std::function<void(TrainerComponents& rank)> steps = {};  ///< takes the place of the loop on every rank, where given
};

}  // namespace levin
