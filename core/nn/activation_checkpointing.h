#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

class Unit;
class UnitRunner;

/// How much checkpointed units may leave for backward: `6GiB`, bytes, or a share such as `0.4` of what they leave when
/// they are not checkpointed; null: unset.
struct ActivationBudgetSize {
  std::optional<int64_t> bytes = {};
  std::optional<double> share = {};
  bool is_set() const { return bytes || share; }
};

template <>
struct ConfigCodec<ActivationBudgetSize> {
  static std::string type_name() { return "size such as 6GiB, share such as 0.4, or null"; }
  static ActivationBudgetSize parse(const Config& node, const std::string& path);
  static Config dump(const ActivationBudgetSize& value);
};

/// Units that are recomputed in backward; none by default. In YAML a list of patterns, or a mapping.
struct ActivationCheckpointingOptions {
  std::vector<std::string> units = {};  ///< types and dotted paths; `*` stands for any characters
  int64_t every = 1;
  bool offload = false;                ///< inputs on CUDA wait in pinned host memory
  std::vector<std::string> keep = {};  ///< operators whose results are kept; see OperatorChoice
  ActivationBudgetSize budget = {};    ///< results are kept as far as it goes; see ActivationBudget
  static void describe(Schema<ActivationCheckpointingOptions>& schema);
};

template <>
struct ConfigCodec<ActivationCheckpointingOptions> {
  static std::string type_name() { return "list of units, or mapping"; }
  static ActivationCheckpointingOptions parse(const Config& node, const std::string& path);
  static Config dump(const ActivationCheckpointingOptions& value);
};

/// Runs units of a module by run_checkpointed, while it lives.
///
/// A pattern is compared with the type ("Block") and the dotted path ("encoder.blocks.0") of each unit. One with `*`
/// takes only the outermost of units that are inside one another, so that "blocks.*" is the blocks and not what they
/// are made of.
class ActivationCheckpointing {
 public:
  /// The module outlives it. Throws ConfigError for a pattern that meets no unit, saying which there are.
  ActivationCheckpointing(torch::nn::Module& module, const ActivationCheckpointingOptions& options);
  ~ActivationCheckpointing();
  ActivationCheckpointing(const ActivationCheckpointing&) = delete;
  ActivationCheckpointing& operator=(const ActivationCheckpointing&) = delete;

  /// The paths of the units that are checkpointed.
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
  std::vector<Unit*> units_;
  std::vector<std::unique_ptr<UnitRunner>> runners_;  ///< of the units, in the same order
};

}  // namespace levin
