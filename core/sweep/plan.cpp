#include <levin/core/sweep/plan.h>

#include <levin/core/base/error.h>
#include <levin/core/sweep/distribution.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace levin::sweep {
namespace {

constexpr size_t kMostRuns = 100'000;

std::string origin_text(const Config& node) { return node.origin().prefix(); }

void check_mapping(const Config& node, const std::string& path) {
  if (!node.is_mapping() && !node.is_null()) throw_wrong_type(node, path, "a mapping of options");
}

void check_list(const Config& node, const std::string& path) {
  if (!node.is_sequence() && !node.is_null()) throw_wrong_type(node, path, "a list of mappings");
}

/// The options below a node, written as `model.lr` or as mappings inside each other.
void append_options(const Config& node, const std::string& option, const std::function<bool(const Config&)>& is_value,
                    Settings& settings) {
  if (!option.empty() && is_value(node)) {
    settings.push_back({option, node});
    return;
  }
  for (const auto& entry : node.entries())
    append_options(entry.value, option.empty() ? entry.key : option + "." + entry.key, is_value, settings);
}

bool is_no_mapping(const Config& node) { return !node.is_mapping() || node.entries().empty(); }

Settings options_of(const Config& node) {
  Settings settings;
  append_options(node, "", is_no_mapping, settings);
  return settings;
}

/// Each of `runs` with each of `further`.
std::vector<Settings> combined(const std::vector<Settings>& runs, const std::vector<Settings>& further) {
  std::vector<Settings> result;
  for (const Settings& run : runs)
    for (const Settings& more : further) {
      if (result.size() == kMostRuns)
        throw ConfigError(fmt::format("sweep: more than {} runs; hint: `random` with `samples`", kMostRuns));
      Settings both = run;
      both.insert(both.end(), more.begin(), more.end());
      result.push_back(std::move(both));
    }
  return result;
}

std::vector<Settings> list_runs(const SweepOptions& options) {
  check_list(options.list, "sweep.list");
  if (options.list.items().empty()) return {{}};
  std::vector<Settings> runs;
  for (const Config& entry : options.list.items()) {
    check_mapping(entry, "sweep.list");
    runs.push_back(options_of(entry));
  }
  return runs;
}

std::vector<Settings> grid_runs(const SweepOptions& options) {
  check_mapping(options.grid, "sweep.grid");
  std::vector<Settings> runs = {{}};
  for (const auto& [option, values] : options_of(options.grid)) {
    if (!values.is_sequence()) throw_wrong_type(values, "sweep.grid." + option, "a list of values");
    if (values.items().empty())
      throw ConfigError(fmt::format("{}sweep.grid.{} is empty: there is nothing to run; hint: [0.001, 0.003]",
                                    origin_text(values), option));
    std::vector<Settings> choices;
    for (const Config& value : values.items()) choices.push_back({{option, value}});
    runs = combined(runs, choices);
  }
  return runs;
}

std::vector<Settings> random_runs(const SweepOptions& options) {
  check_mapping(options.random, "sweep.random");
  Settings distributions;
  append_options(
      options.random, "", [](const Config& node) { return is_no_mapping(node) || is_distribution(node); },
      distributions);
  if (distributions.empty()) return {{}};
  std::vector<Settings> runs;
  for (int64_t sample = 0; sample < options.samples; ++sample) {
    Settings& run = runs.emplace_back();
    for (size_t i = 0; i < distributions.size(); ++i) {
      const auto& [option, distribution] = distributions[i];
      run.push_back({option, draw(distribution, "sweep.random." + option, static_cast<uint64_t>(options.sample_seed),
                                  static_cast<uint64_t>(sample), i)});
    }
  }
  return runs;
}

/// The options of all these, in order of first appearance.
std::vector<std::string> options_in(const std::vector<std::vector<Settings>>& parts) {
  std::vector<std::string> names;
  for (const auto& runs : parts)
    for (const Settings& run : runs)
      for (const auto& [option, value] : run)
        if (std::find(names.begin(), names.end(), option) == names.end()) names.push_back(option);
  return names;
}

void check_once(const std::vector<Settings>& runs) {
  for (const Settings& run : runs)
    for (size_t i = 0; i < run.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (run[i].option == run[j].option)
          throw ConfigError(fmt::format("{}sweep: {} is varied twice; valid: in one of grid, list and random",
                                        origin_text(run[i].value), run[i].option));
}

/// Refuses an option that another one of the run sets again under another name, such as optimizer.lr and
/// trainer.optimizer.lr: its column would say what was not trained with.
void check_each_counts(const std::vector<Settings>& runs, SettingMeanings& meanings) {
  const size_t base = meanings.number({});
  std::set<std::string> checked;
  for (const Settings& run : runs)
    for (const Setting& setting : run) {
      if (checked.contains(setting.option) || meanings.number({setting}) == base) continue;
      checked.insert(setting.option);
      Settings without = run;
      std::erase_if(without, [&](const Setting& other) { return other.option == setting.option; });
      if (meanings.number(without) == meanings.number(run))
        throw ConfigError(fmt::format(
            "{}sweep: {} has no effect beside the others that vary ({}); valid: each option once, under one "
            "name",
            origin_text(setting.value), setting.option, describe(without)));
    }
}

/// Whether a run's option has the value, or one of the values in a list.
bool matches(const Settings& run, const Setting& wanted, SettingMeanings& meanings) {
  if (!wanted.value.is_sequence()) return meanings.has(run, wanted);
  const auto& values = wanted.value.items();
  return std::any_of(values.begin(), values.end(), [&](const Config& value) {
    return meanings.has(run, {wanted.option, value});
  });
}

void check_varied(const Setting& setting, const std::vector<std::string>& varied, const std::string& where) {
  if (std::find(varied.begin(), varied.end(), setting.option) == varied.end())
    throw ConfigError(fmt::format("{}{}: the sweep does not vary {}{}", origin_text(setting.value), where,
                                  setting.option, valid_names_hint(setting.option, varied)));
}

/// The condition on an option: an option of `only_when` whose own options are those that it depends on.
struct Condition {
  std::string option;
  Settings wanted;
};

std::vector<Condition> conditions_of(const SweepOptions& options, const std::vector<std::string>& varied) {
  check_mapping(options.only_when, "sweep.only_when");
  std::vector<Condition> conditions;
  for (const auto& entry : options.only_when.entries()) {
    if (!entry.value.is_mapping())
      throw_wrong_type(entry.value, "sweep.only_when." + entry.key, "a mapping such as {model.name: cnn}");
    check_varied({entry.key, entry.value}, varied, "sweep.only_when");
    Condition condition{.option = entry.key, .wanted = options_of(entry.value)};
    for (const Setting& wanted : condition.wanted) check_varied(wanted, varied, "sweep.only_when." + entry.key);
    conditions.push_back(std::move(condition));
  }
  return conditions;
}

/// A condition may ask for an option that another one takes away.
void drop_conditional(Settings& run, const std::vector<Condition>& conditions, SettingMeanings& meanings) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const Condition& condition : conditions) {
      const auto holds = [&](const Setting& wanted) { return matches(run, wanted, meanings); };
      if (std::all_of(condition.wanted.begin(), condition.wanted.end(), holds)) continue;
      changed |= std::erase_if(run, [&](const Setting& setting) { return setting.option == condition.option; }) > 0;
    }
  }
}

std::vector<Settings> exclusions_of(const SweepOptions& options, const std::vector<std::string>& varied) {
  check_list(options.exclude, "sweep.exclude");
  std::vector<Settings> exclusions;
  for (const Config& entry : options.exclude.items()) {
    check_mapping(entry, "sweep.exclude");
    exclusions.push_back(options_of(entry));
    for (const Setting& setting : exclusions.back()) check_varied(setting, varied, "sweep.exclude");
  }
  return exclusions;
}

bool is_excluded(const Settings& run, const std::vector<Settings>& exclusions, SettingMeanings& meanings) {
  return std::any_of(exclusions.begin(), exclusions.end(), [&](const Settings& exclusion) {
    return !exclusion.empty() && std::all_of(exclusion.begin(), exclusion.end(),
                                             [&](const Setting& wanted) { return matches(run, wanted, meanings); });
  });
}

}  // namespace

Plan make_plan(const SweepOptions& options, int64_t first_seed, SettingMeanings& meanings) {
  const std::vector<std::vector<Settings>> parts = {list_runs(options), grid_runs(options), random_runs(options)};
  std::vector<Settings> all = {{}};
  for (const auto& part : parts) all = combined(all, part);
  check_once(all);
  Plan plan{.options = options_in(parts)};
  if (plan.options.empty() && options.repeats == 1)
    throw ConfigError(
        "sweep: nothing varies: grid, list and random are empty; hint: sweep: {grid: {model.lr: [0.001, 0.003]}}");
  const auto conditions = conditions_of(options, plan.options);
  const auto exclusions = exclusions_of(options, plan.options);

  std::vector<Settings> kept;
  std::set<size_t> seen;
  for (Settings& run : all) {
    drop_conditional(run, conditions, meanings);
    if (is_excluded(run, exclusions, meanings)) continue;
    if (seen.insert(meanings.number(run)).second) kept.push_back(std::move(run));
  }
  if (kept.empty())
    throw ConfigError(
        fmt::format("sweep.exclude leaves out all of the {} combinations: there is nothing to run", all.size()));
  if (options.repeats == 1) {
    plan.runs = std::move(kept);
    check_each_counts(plan.runs, meanings);
    return plan;
  }
  if (std::find(plan.options.begin(), plan.options.end(), "seed") != plan.options.end())
    throw ConfigError("sweep.repeats: the sweep varies seed already; valid: one of the two");
  plan.options.emplace_back("seed");
  std::vector<Settings> seeds;
  for (int64_t i = 0; i < options.repeats; ++i) seeds.push_back({{"seed", ConfigCodec<int64_t>::dump(first_seed + i)}});
  plan.runs = combined(kept, seeds);
  check_each_counts(plan.runs, meanings);
  return plan;
}

}  // namespace levin::sweep
