#include <levin/core/nn/activation_checkpointing.h>

#include <levin/core/nn/checkpointed_call.h>
#include <levin/core/nn/kept_results.h>
#include <levin/core/nn/unit.h>
#include <levin/core/nn/unit_patterns.h>

#include <fmt/format.h>

#include <utility>

namespace levin {
namespace {

class CheckpointingRunner : public UnitRunner {
 public:
  CheckpointingRunner(std::string name, bool offload, std::shared_ptr<const OperatorChoice> keep)
      : name_(std::move(name)), offload_(offload), keep_(std::move(keep)) {}
  void run(UnitCall& call) override { run_checkpointed(call, name_, offload_, keep_); }

 private:
  std::string name_;
  bool offload_;
  std::shared_ptr<const OperatorChoice> keep_;
};

}  // namespace

void ActivationCheckpointingOptions::describe(Schema<ActivationCheckpointingOptions>& schema) {
  using Options = ActivationCheckpointingOptions;
  schema.field("units", &Options::units, "types of units (Block) and dotted paths (blocks.*)");
  schema.field("every", &Options::every, "recompute every n-th of these units").at_least(1);
  schema.field("offload", &Options::offload, "keep the inputs of these units in host memory until backward");
  schema.field("keep", &Options::keep,
               "operators whose results are kept instead of recomputed: linear, matmul, scaled_dot_product_attention, "
               "or LibTorch's names (mm, convolution)");
}

ActivationCheckpointingOptions ConfigCodec<ActivationCheckpointingOptions>::parse(const Config& node,
                                                                                  const std::string& path) {
  if (node.is_sequence()) return {.units = ConfigCodec<std::vector<std::string>>::parse(node, path)};
  if (node.is_mapping() || node.is_null()) {
    auto options = parse_options<ActivationCheckpointingOptions>(node, path);
    if (node.is_mapping() && options.units.empty())
      throw_wrong_type(node, path, "a list of units, or a mapping that has such a list as 'units'");
    return options;
  }
  throw_wrong_type(node, path, "a list of units ([Block, encoder.*]), or a mapping of units, every, offload and keep");
}

Config ConfigCodec<ActivationCheckpointingOptions>::dump(const ActivationCheckpointingOptions& value) {
  if (value.every == 1 && !value.offload && value.keep.empty())
    return ConfigCodec<std::vector<std::string>>::dump(value.units);
  return schema_of<ActivationCheckpointingOptions>().dump(value);
}

ActivationCheckpointing::ActivationCheckpointing(torch::nn::Module& module,
                                                 const ActivationCheckpointingOptions& options) {
  schema_of<ActivationCheckpointingOptions>().validate(options, "trainer.activation_checkpointing");
  const auto keep = options.keep.empty()
                        ? nullptr
                        : std::make_shared<const OperatorChoice>(options.keep, "trainer.activation_checkpointing.keep");
  int64_t count = 0;
  for (const auto& [path, type, unit] : select_units(module, options.units, "trainer.activation_checkpointing")) {
    if (count++ % options.every != 0) continue;
    runners_.push_back(std::make_unique<CheckpointingRunner>(path.empty() ? type : fmt::format("{} '{}'", type, path),
                                                             options.offload, keep));
    paths_.push_back(path);
    units_.push_back(unit);
    unit->set_runner(runners_.back().get());
  }
}

ActivationCheckpointing::~ActivationCheckpointing() {
  for (Unit* unit : units_) unit->set_runner(nullptr);
}

}  // namespace levin
