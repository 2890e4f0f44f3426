#include <levin/core/nn/activation_checkpointing.h>

#include <levin/core/base/error.h>
#include <levin/core/base/memory_size.h>
#include <levin/core/nn/activation_budget.h>
#include <levin/core/nn/checkpointed_call.h>
#include <levin/core/nn/kept_results.h>
#include <levin/core/nn/unit.h>
#include <levin/core/nn/unit_patterns.h>

#include <fmt/format.h>

#include <charconv>
#include <system_error>
#include <utility>

namespace levin {
namespace {

class CheckpointingRunner : public UnitRunner {
 public:
  CheckpointingRunner(std::string name, bool offload, std::shared_ptr<const OperatorChoice> keep,
                      std::shared_ptr<ActivationBudget> budget)
      : name_(std::move(name)), offload_(offload), keep_(std::move(keep)), budget_(std::move(budget)) {
    if (budget_ != nullptr) place_ = budget_->add_unit();
  }
  void run(UnitCall& call) override {
    if (budget_ == nullptr) return run_checkpointed(call, name_, offload_, keep_);
    auto choice = budget_->choice_of(place_);
    run_checkpointed(call, name_, offload_, choice, choice == nullptr ? budget_->measure(place_) : nullptr);
  }

 private:
  std::string name_;
  bool offload_;
  std::shared_ptr<const OperatorChoice> keep_;
  std::shared_ptr<ActivationBudget> budget_;  ///< nullptr: none
  size_t place_ = 0;                          ///< among the units of the budget
};

}  // namespace

ActivationBudgetSize ConfigCodec<ActivationBudgetSize>::parse(const Config& node, const std::string& path) {
  if (node.is_null()) return {};
  constexpr const char* kExpected = "a size such as 6GiB or 512MiB, or a share above 0 and up to 1, such as 0.4";
  if (!node.is_scalar()) throw_wrong_type(node, path, kExpected);
  const std::string& text = node.text();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0 && number <= 1) return {.share = number};
  const auto bytes = parse_bytes(text);
  if (!bytes) throw_wrong_type(node, path, kExpected);
  return {.bytes = bytes};
}

Config ConfigCodec<ActivationBudgetSize>::dump(const ActivationBudgetSize& value) {
  if (value.share) return ConfigCodec<double>::dump(*value.share);
  return ConfigCodec<std::optional<int64_t>>::dump(value.bytes);
}

void ActivationCheckpointingOptions::describe(Schema<ActivationCheckpointingOptions>& schema) {
  using Options = ActivationCheckpointingOptions;
  schema.field("units", &Options::units, "types of units (Block) and dotted paths (blocks.*)");
  schema.field("every", &Options::every, "recompute every n-th of these units").at_least(1);
  schema.field("offload", &Options::offload, "keep the inputs of these units in host memory until backward");
  schema.field("keep", &Options::keep,
               "operators whose results are kept instead of recomputed: linear, matmul, scaled_dot_product_attention, "
               "or LibTorch's names (mm, convolution)");
  schema.field("budget", &Options::budget,
               "what these units may leave for backward, as bytes (6GiB) or as a share of what they leave otherwise "
               "(0.4): the results that save most time are kept; instead of keep");
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
  throw_wrong_type(node, path,
                   "a list of units ([Block, encoder.*]), or a mapping of units, every, offload, keep and budget");
}

Config ConfigCodec<ActivationCheckpointingOptions>::dump(const ActivationCheckpointingOptions& value) {
  if (value.every == 1 && !value.offload && value.keep.empty() && !value.budget.is_set())
    return ConfigCodec<std::vector<std::string>>::dump(value.units);
  return schema_of<ActivationCheckpointingOptions>().dump(value);
}

ActivationCheckpointing::ActivationCheckpointing(torch::nn::Module& module,
                                                 const ActivationCheckpointingOptions& options) {
  schema_of<ActivationCheckpointingOptions>().validate(options, "trainer.activation_checkpointing");
  const auto keep = options.keep.empty()
                        ? nullptr
                        : std::make_shared<const OperatorChoice>(options.keep, "trainer.activation_checkpointing.keep");
  if (options.budget.is_set() && keep != nullptr)
    throw ConfigError(
        "trainer.activation_checkpointing: keep and budget exclude each other; got both; hint: a budget "
        "chooses what is kept");
  const auto budget = options.budget.is_set()
                          ? std::make_shared<ActivationBudget>(options.budget.bytes, options.budget.share)
                          : nullptr;
  int64_t count = 0;
  for (const auto& [path, type, unit] : select_units(module, options.units, "trainer.activation_checkpointing")) {
    if (count++ % options.every != 0) continue;
    runners_.push_back(std::make_unique<CheckpointingRunner>(path.empty() ? type : fmt::format("{} '{}'", type, path),
                                                             options.offload, keep, budget));
    paths_.push_back(path);
    units_.push_back(unit);
    unit->set_runner(runners_.back().get());
  }
}

ActivationCheckpointing::~ActivationCheckpointing() {
  for (Unit* unit : units_) unit->set_runner(nullptr);
}

}  // namespace levin
