#include <levin/core/nn/activation_checkpointing.h>

#include <levin/core/base/wildcard.h>
#include <levin/core/nn/checkpointed_call.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace levin {
namespace {

class CheckpointingRunner : public UnitRunner {
 public:
  CheckpointingRunner(std::string name, bool offload) : name_(std::move(name)), offload_(offload) {}
  void run(UnitCall& call) override { run_checkpointed(call, name_, offload_); }

 private:
  std::string name_;
  bool offload_;
};

bool is_inside(const NamedUnit& unit, const NamedUnit& outer) {
  return outer.path.empty() || unit.path.starts_with(outer.path + ".");
}

/// "Block (blocks.0, blocks.1, blocks.2 and 9 more), Head (head)"
std::string list_of(const std::vector<NamedUnit>& units) {
  constexpr size_t kShown = 3;
  std::map<std::string, std::vector<std::string>> paths;
  for (const auto& unit : units) paths[unit.type].push_back(unit.path);
  std::vector<std::string> types;
  for (auto& [type, of_type] : paths) {
    const size_t more = of_type.size() > kShown ? of_type.size() - kShown : 0;
    of_type.resize(of_type.size() - more);
    types.push_back(fmt::format("{} ({}{})", type, join(of_type), more > 0 ? fmt::format(" and {} more", more) : ""));
  }
  return join(types);
}

[[noreturn]] void throw_meets_nothing(const std::string& pattern, const std::vector<NamedUnit>& units) {
  if (units.empty())
    throw ConfigError(
        fmt::format("trainer.activation_checkpointing: '{}' meets no unit, and the module has none; hint: declare the "
                    "holders of its blocks with LEVIN_UNIT in place of TORCH_MODULE, or use levin::Sequential",
                    pattern));
  std::vector<std::string> names;
  for (const auto& unit : units) {
    names.push_back(unit.type);
    names.push_back(unit.path);
  }
  const std::string nearest = nearest_name(pattern, names);
  throw ConfigError(
      fmt::format("trainer.activation_checkpointing: '{}' meets no unit{}; valid: {}, their paths, and "
                  "patterns of these with *",
                  pattern, nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest), list_of(units)));
}

/// Indices of the units that a pattern takes.
std::set<size_t> taken_by(const std::string& pattern, const std::vector<NamedUnit>& units) {
  const bool outermost_only = pattern.find('*') != pattern.npos;
  std::set<size_t> taken;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!matches_wildcard(pattern, units[i].type) && !matches_wildcard(pattern, units[i].path)) continue;
    const bool nested =
        std::any_of(taken.begin(), taken.end(), [&](size_t other) { return is_inside(units[i], units[other]); });
    if (!nested || !outermost_only) taken.insert(i);
  }
  return taken;
}

}  // namespace

void ActivationCheckpointingOptions::describe(Schema<ActivationCheckpointingOptions>& schema) {
  using Options = ActivationCheckpointingOptions;
  schema.field("units", &Options::units, "types of units (Block) and dotted paths (blocks.*)");
  schema.field("every", &Options::every, "of these units, the first and each n-th after it").at_least(1);
  schema.field("offload", &Options::offload, "the inputs of these units wait for backward in host memory");
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
  throw_wrong_type(node, path, "a list of units ([Block, encoder.*]), or a mapping of units, every and offload");
}

Config ConfigCodec<ActivationCheckpointingOptions>::dump(const ActivationCheckpointingOptions& value) {
  if (value.every == 1 && !value.offload) return ConfigCodec<std::vector<std::string>>::dump(value.units);
  return schema_of<ActivationCheckpointingOptions>().dump(value);
}

ActivationCheckpointing::ActivationCheckpointing(torch::nn::Module& module,
                                                 const ActivationCheckpointingOptions& options) {
  schema_of<ActivationCheckpointingOptions>().validate(options, "trainer.activation_checkpointing");
  const std::vector<NamedUnit> units = named_units(module);
  std::set<size_t> taken;
  for (const auto& pattern : options.units) {
    const std::set<size_t> more = taken_by(pattern, units);
    if (more.empty()) throw_meets_nothing(pattern, units);
    taken.insert(more.begin(), more.end());
  }
  int64_t count = 0;
  for (const size_t index : taken) {
    if (count++ % options.every != 0) continue;
    const auto& [path, type, unit] = units[index];
    runners_.push_back(std::make_unique<CheckpointingRunner>(path.empty() ? type : fmt::format("{} '{}'", type, path),
                                                             options.offload));
    paths_.push_back(path);
    units_.push_back(unit);
    unit->set_runner(runners_.back().get());
  }
}

ActivationCheckpointing::~ActivationCheckpointing() {
  for (Unit* unit : units_) unit->set_runner(nullptr);
}

}  // namespace levin
