#pragma once

#include <levin/core/optim/gradient_clipping.h>
#include <levin/core/options/options.h>
#include <levin/core/options/run_folder.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace levin {

/// Options as worked out from TrainerOptions: no "auto", no conflict, nothing to ask twice. It stays as it is while a
/// trainer lives, `config` apart.
struct ResolvedOptions {
  TrainerOptions given;  ///< as users set them
  Config config;         ///< the same as a tree, or the program's whole configuration; see Trainer::set_config

  std::optional<int64_t> max_epochs;  ///< nothing: without end
  int64_t min_epochs = 0;
  std::optional<int64_t> max_steps;
  int64_t min_steps = 0;
  std::optional<std::chrono::seconds> max_time;

  std::vector<at::Device> devices;
  bool devices_are_given = true;  ///< false: `devices: auto`
  std::shared_ptr<Strategy> strategy;
  std::shared_ptr<Precision> precision;
  std::shared_ptr<optim::NamedOptimizer> optimizer;  ///< nullptr: none was named

  BatchLimit limit_train;
  BatchLimit limit_val;
  BatchLimit limit_test;
  BatchLimit limit_predict;
  bool overfit = false;
  int64_t sanity_steps = 0;  ///< -1: all
  ClipAlgorithm clip_algorithm = ClipAlgorithm::kNorm;
  double clip_value = 0;  ///< 0: gradients are not clipped
  bool channels_last = false;

  std::vector<std::shared_ptr<Callback>> callbacks;  ///< defaults included
  std::vector<std::shared_ptr<Logger>> loggers;
  std::shared_ptr<Profiler> profiler;  ///< nullptr: none
  bool writes_files = true;            ///< a run folder is made
  FolderChoice run_folder = {};
};

/// Makes the strategy that the options name, or the default one, for so many ranks. Throws ConfigError.
std::shared_ptr<Strategy> make_strategy(const TrainerOptions& options, int64_t ranks);

/// Checks all options and all conflicts between them, before any rank starts. Throws ConfigError naming both settings.
ResolvedOptions resolve(const TrainerOptions& options);

}  // namespace levin
