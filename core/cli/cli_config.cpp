#include <levin/core/cli/cli_config.h>

#include <levin/core/base/error.h>
#include <levin/core/base/setting_variables.h>
#include <levin/core/base/yaml_reader.h>
#include <levin/core/cli/data_command.h>
#include <levin/core/cli/export_command.h>
#include <levin/core/cli/lightning_config.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/options/compatibility_options.h>
#include <levin/core/options/mesh_strategy.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/planning/strategy_choice.h>
#include <levin/core/precision/precision.h>
#include <levin/core/sweep/sweep_options.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {

namespace {

const CommandSection* find_section(const ConfigNames& names, const std::string& name) {
  const auto found = std::find_if(names.sections.begin(), names.sections.end(),
                                  [&](const CommandSection& section) { return section.name == name; });
  return found == names.sections.end() ? nullptr : &*found;
}

bool has_field(const std::vector<FieldDoc>& fields, const std::string& name) {
  return std::any_of(fields.begin(), fields.end(), [&](const FieldDoc& field) { return field.name == name; });
}

template <class Base>
bool has_option(const Registry<Base>& registry, const std::string& option) {
  return std::any_of(registry.items().begin(), registry.items().end(),
                     [&](const auto& item) { return has_field(item.fields, option); });
}

/// Returns the section of an option written without one, or "".
std::string section_of(const std::string& option, const ConfigNames& names) {
  const auto trainer_options = schema_of<TrainerOptions>().names();
  if (std::find(trainer_options.begin(), trainer_options.end(), option) != trainer_options.end()) return "trainer";
  if (has_option(names.modules, option)) return "model";
  if (has_option(names.data, option)) return "data";
  for (const auto& section : names.sections)
    if (has_field(section.fields, option)) return section.name;
  return "";
}

/// Returns the option of the trainer or a command that is nearest to a misspelt one, with its section, or "".
std::string nearest_option(const std::string& option, const ConfigNames& names) {
  std::vector<std::string> options = schema_of<TrainerOptions>().names();
  std::vector<std::string> sections(options.size(), "trainer");
  for (const auto& section : names.sections)
    for (const FieldDoc& field : section.fields) {
      options.push_back(field.name);
      sections.push_back(section.name);
    }
  const std::string nearest = nearest_name(option, options);
  const auto found = std::find(options.begin(), options.end(), nearest);
  return nearest.empty() ? "" : sections[static_cast<size_t>(found - options.begin())] + "." + nearest;
}

void check_top_level(const Config& source, const ConfigNames& names) {
  std::vector<std::string> keys = top_level_keys();
  for (const auto& section : names.sections) keys.push_back(section.name);
  for (const auto& entry : source.entries()) {
    if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) continue;
    const std::string section = section_of(entry.key, names);
    std::string meant = nearest_name(entry.key, keys);
    if (!section.empty()) meant = section + "." + entry.key;
    if (meant.empty()) meant = nearest_option(entry.key, names);
    throw ConfigError(fmt::format("{}unknown key '{}'{}; valid: {}", entry.origin.prefix(), entry.key,
                                  meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant), join(keys)));
  }
}

/// Brings `mlp`, `{mlp: {hidden: 1}}` and nothing into the form `{name: mlp, hidden: 1}`, so that sources merge option
/// by option. A mapping without a name stays: it is about whichever name another source gives.
template <class Base>
void normalize_named(Config& node, const Registry<Base>& registry) {
  const Origin origin = node.origin();
  if (node.is_null()) {
    node = Config::mapping(origin);
  } else if (node.is_scalar()) {
    refuse_broken_yaml(node);
    Config named = Config::mapping(origin);
    named.set("name", node, origin);
    node = std::move(named);
  } else if (node.is_mapping() && node.entries().size() == 1) {
    const Config::Entry only = node.entries().front();
    const bool options_follow = only.value.is_mapping() || only.value.is_null();
    if (only.key == "name" || !options_follow || registry.find(only.key) == nullptr) return;
    Config named = Config::mapping(origin);
    named.set("name", Config::scalar(only.key, false, only.origin), only.origin);
    named.merge(only.value.is_mapping() ? only.value : Config::mapping());
    node = std::move(named);
  }
}

/// `name` says which of them it is: options of another do not stay.
void merge_named(Config& base, const Config& later) {
  if (base.is_null() || later.is_null()) {
    base = later;
    return;
  }
  const Config* before = base.is_mapping() ? base.find("name") : nullptr;
  const Config* after = later.is_mapping() ? later.find("name") : nullptr;
  if (before != nullptr && after != nullptr && before->text() != after->text())
    base = later;
  else
    base.merge(later);
}

/// The name of a member of a list of callbacks or loggers, empty for what is none.
std::string member_name(const Config& member) {
  if (member.is_scalar()) return member.text();
  if (!member.is_mapping()) return "";
  if (const Config* name = member.find("name"); name != nullptr && name->is_scalar()) return name->text();
  return member.entries().size() == 1 ? member.entries().front().key : "";
}

/// Changes the members of `list` that `by_name` (a mapping) names, and adds those that are not there.
void merge_members(Config& list, const Config& by_name) {
  std::vector<Config> members = list.items();
  for (const auto& entry : by_name.entries()) {
    Config options = Config::mapping(entry.origin);
    const auto found = std::find_if(members.begin(), members.end(),
                                    [&](const Config& member) { return member_name(member) == entry.key; });
    if (found != members.end() && found->is_mapping()) {
      const bool short_form = found->find("name") == nullptr;
      options = short_form ? found->entries().front().value : *found;
      options.erase("name");
    }
    if (entry.value.is_mapping())
      options.merge(entry.value);
    else if (!entry.value.is_null())
      throw_wrong_type(entry.value, entry.key, "a mapping of options");
    Config member = Config::mapping(entry.origin);
    member.set(entry.key, std::move(options), entry.origin);
    if (found != members.end())
      *found = std::move(member);
    else
      members.push_back(std::move(member));
  }
  list = Config::sequence(std::move(members), by_name.origin());
}

/// Any form of the `callbacks` or `logger` option as a list.
Config as_list(const Config& node, const Origin& origin) {
  if (node.is_sequence()) return node;
  if (node.is_null() || (node.is_scalar() && node.text() == "false")) return Config::sequence({}, origin);
  if (node.is_scalar() && node.text() == "true") {
    std::vector<Config> members;
    for (const auto& spec : LoggerSpecs().resolve()) members.push_back(spec.config());
    return Config::sequence(std::move(members), origin);
  }
  if (node.is_scalar()) {
    refuse_broken_yaml(node);
    return Config::sequence({node}, origin);
  }
  Config list = Config::sequence({}, origin);
  merge_members(list, node);
  return list;
}

void merge_list(Config& base, const Config& later) {
  if (!later.is_mapping()) {
    base = later;
    return;
  }
  Config list = as_list(base, later.origin());
  merge_members(list, later);
  base = std::move(list);
}

bool is_list_option(const std::string& key) { return key == "callbacks" || key == "logger"; }
bool is_named_option(const std::string& key) {
  return key == "precision" || key == "profiler" || key == "optimizer" || key == "scheduler";
}

/// A pipeline's options without a name: those of the strategy, or of a mesh that another source gives.
bool is_pipeline_part(const Config& strategy) {
  return strategy.is_mapping() && strategy.entries().size() == 1 && strategy.find("pipeline") != nullptr;
}

/// The sizes of a mesh say which strategy it is, as a name does.
void merge_strategy(Config& base, const Config& later, const ConfigNames& names) {
  const auto has_no_name = [](const Config& strategy) {
    return strategy.is_mapping() && strategy.find("name") == nullptr;
  };
  if (has_no_name(base) && has_no_name(later)) {
    Config merged = merge_meshes(base, later);
    // The options of a pipeline may be those of the strategy of that name.
    const bool has_other = std::ranges::any_of(merged.entries(), [](const Config::Entry& entry) {
      return !is_rank_option(entry.key) &&
             std::ranges::find(kMeshDimensions, entry.key, &MeshDimension::name) == kMeshDimensions.end();
    });
    if (is_mesh(merged) && (is_mesh(base) || is_mesh(later) || !has_other)) {
      base = std::move(merged);
      return;
    }
  }
  if (is_mesh(base) || is_mesh(later)) {
    base = later;
    return;
  }
  Config named = later;
  for (Config* strategy : {&base, &named}) normalize_named(*strategy, names.strategies);
  merge_named(base, named);
}

void merge_trainer(Config& base, const Config& later, const ConfigNames& names) {
  for (const auto& entry : later.entries()) {
    Config* mine = base.find(entry.key);
    if (mine == nullptr)
      base.set(entry.key, entry.value, entry.origin);
    else if (is_list_option(entry.key))
      merge_list(*mine, entry.value);
    else if (entry.key == "strategy")
      merge_strategy(*mine, entry.value, names);
    else if (is_named_option(entry.key))
      merge_named(*mine, entry.value);
    else
      mine->merge(entry.value);
  }
}

/// `adapters`, `optimizer` and `scheduler` may stand beside `model`, which they belong to, although they are the
/// trainer's.
void move_into_trainer(Config& source, const std::string& option) {
  const Config* const given = source.find(option);
  if (given == nullptr) return;
  const Config value = *given;
  if (const Config* trainer = source.find("trainer"); trainer != nullptr && trainer->find(option) != nullptr)
    throw ConfigError(fmt::format("{}'{}' and 'trainer.{}' are the same option; hint: leave one out",
                                  value.origin().prefix(), option, option));
  source.erase(option);
  if (source.find("trainer") == nullptr) source.set("trainer", Config::mapping(value.origin()), value.origin());
  source.find("trainer")->set(option, value, value.origin());
}

void normalize(Config& source, const ConfigNames& names) {
  if (source.is_null()) source = Config::mapping(source.origin());
  if (!source.is_mapping())
    throw_wrong_type(source, "the configuration", "a mapping such as `trainer: {max_epochs: 3}`");
  translate_lightning_config(source, names);
  check_top_level(source, names);
  if (Config* model = source.find("model")) normalize_named(*model, names.modules);
  if (Config* data = source.find("data")) normalize_named(*data, names.data);
  if (Config* trainer = source.find("trainer")) {
    if (trainer->is_null()) *trainer = Config::mapping(trainer->origin());
    if (!trainer->is_mapping()) throw_wrong_type(*trainer, "trainer", "a mapping of options");
  }
  move_into_trainer(source, "adapters");
  move_into_trainer(source, "optimizer");
  move_into_trainer(source, "scheduler");
  Config* trainer = source.find("trainer");
  if (trainer == nullptr) return;
  translate_compatibility_options(*trainer);
  if (Config* strategy = trainer->find("strategy");
      strategy != nullptr && !is_mesh(*strategy) && !is_pipeline_part(*strategy)) {
    normalize_named(*strategy, names.strategies);
    *strategy = present_strategy(*strategy);
  }
  if (Config* precision = trainer->find("precision")) normalize_named(*precision, names.precisions);
  if (Config* profiler = trainer->find("profiler"); profiler != nullptr && !profiler->is_null())
    normalize_named(*profiler, names.profilers);
  if (Config* weights = trainer->find("init_from"); weights != nullptr && weights->is_scalar() && !weights->is_null()) {
    Config options = Config::mapping(weights->origin());
    options.set("path", *weights, weights->origin());
    *weights = std::move(options);
  }
  if (Config* optimizer = trainer->find("optimizer"); optimizer != nullptr && !optimizer->is_null())
    normalize_named(*optimizer, names.optimizers);
  if (Config* scheduler = trainer->find("scheduler"); scheduler != nullptr && !scheduler->is_null())
    normalize_named(*scheduler, names.schedulers);
}

/// Lays a normalized source over the others.
void merge_source(Config& base, const Config& later, const ConfigNames& names) {
  for (const auto& entry : later.entries()) {
    Config* mine = base.find(entry.key);
    if (mine == nullptr)
      base.set(entry.key, entry.value, entry.origin);
    else if (entry.key == "model" || entry.key == "data")
      merge_named(*mine, entry.value);
    else if (entry.key == "trainer")
      merge_trainer(*mine, entry.value, names);
    else if (entry.key == "plan" || entry.key == "sweep" || entry.key == "export" || entry.key == "inspect" ||
             find_section(names, entry.key) != nullptr)
      mine->merge(entry.value);
    else
      *mine = entry.value;
  }
}

/// `{name: mlp, ...}` with every default.
template <class Base>
Config resolve_named(const Config& node, const Registry<Base>& registry, const std::string& path) {
  if (!node.is_mapping()) throw_wrong_type(node, path, "the name of a " + registry.kind() + " or a mapping of options");
  const Config* given = node.find("name");
  if (given != nullptr && !given->is_scalar()) throw_wrong_type(*given, path + ".name", "a name");
  const Config name = given != nullptr ? *given : Config::scalar(registry.items().front().name);
  Config options = node;
  options.erase("name");
  Config resolved = Config::mapping(node.origin());
  const auto& item = registry.require(name.text(), name.origin());
  const bool by_its_meaning = TypedFormScope::is_active() && !item.alias_of.is_null();
  resolved.set("name", by_its_meaning ? *item.alias_of.find("name") : name, name.origin());
  resolved.merge(item.resolve(options, path));
  return resolved;
}

template <class Base>
void resolve_section(Config& resolved, const Config& merged, const char* key, const Registry<Base>& registry) {
  const Config* given = merged.find(key);
  if (!registry.items().empty()) {
    resolved.set(key, resolve_named(given != nullptr ? *given : Config::mapping(), registry, key));
  } else if (given != nullptr && !given->entries().empty()) {
    throw ConfigError(
        fmt::format("{}'{}' names a {}, but this program has none", given->origin().prefix(), key, registry.kind()));
  }
}

/// A strategy, precision or profiler: the name alone where it has no options.
template <class Base>
Config resolve_spec(const Config& node, const Registry<Base>& registry, const std::string& path) {
  Config named = node;
  normalize_named(named, registry);
  const auto* name = named.is_mapping() ? named.find("name") : nullptr;
  if (name == nullptr)
    throw_wrong_type(node, path, fmt::format("the name of a {} or {{name: ..., option: value}}", registry.kind()));
  if (name->is_scalar() && name->text() == "auto") {
    if (named.entries().size() > 1)
      throw ConfigError(fmt::format("{}{}: 'auto' has no options; hint: name the {} that they are for",
                                    named.origin().prefix(), path, registry.kind()));
    return *name;
  }
  const Config resolved = resolve_named(named, registry, path);
  return resolved.entries().size() == 1 ? resolved.entries().front().value : resolved;
}

template <class Base>
Config resolve_members(const Config& list, const Registry<Base>& registry, const std::string& path) {
  std::vector<Config> members;
  for (size_t i = 0; i < list.items().size(); ++i) {
    const auto [name, options] =
        detail::split_named_config(list.items()[i], fmt::format("{}[{}]", path, i), registry.kind());
    const auto& item = registry.require(name.text(), name.origin());
    Config member = Config::mapping(name.origin());
    member.set(name.text(), item.resolve(options, path + "." + name.text()), name.origin());
    members.push_back(std::move(member));
  }
  return Config::sequence(std::move(members), list.origin());
}

Config resolve_trainer(const Config* given, const ConfigNames& names) {
  Config options = given != nullptr ? *given : Config::mapping();
  if (Config* callbacks = options.find("callbacks")) *callbacks = as_list(*callbacks, callbacks->origin());
  if (Config* logger = options.find("logger"); logger != nullptr && logger->is_mapping())
    *logger = as_list(*logger, logger->origin());
  Config trainer = schema_of<TrainerOptions>().resolve(options, "trainer");
  Config& strategy = *trainer.find("strategy");
  const Config* const written = options.find("strategy");
  strategy = written != nullptr && !written->is_null() ? *written : TrainerOptions().strategy.config();
  refuse_misspelt_mesh(strategy);
  if (is_mesh(strategy))
    strategy = resolve_mesh(strategy);
  else if (is_limited_auto(strategy))
    strategy = resolve_limited_auto(strategy);
  else
    strategy = resolve_spec(strategy, names.strategies, "trainer.strategy");
  Config& precision = *trainer.find("precision");
  precision = resolve_spec(precision, names.precisions, "trainer.precision");
  Config& profiler = *trainer.find("profiler");
  if (!profiler.is_null()) profiler = resolve_spec(profiler, names.profilers, "trainer.profiler");
  Config& optimizer = *trainer.find("optimizer");
  if (!optimizer.is_null()) optimizer = resolve_spec(optimizer, names.optimizers, "trainer.optimizer");
  Config& callbacks = *trainer.find("callbacks");
  callbacks = resolve_members(callbacks, names.callbacks, "trainer.callbacks");
  Config& logger = *trainer.find("logger");
  if (ConfigCodec<LoggerSpecs>::parse(logger, "trainer.logger").named()) {
    const Config members = as_list(logger, logger.origin());
    for (const Config& member : members.items()) refuse_ended_logger(member, names.loggers);
    logger = resolve_members(members, names.loggers, "trainer.logger");
  }
  return trainer;
}

/// A value of the top level, checked, with the form and origin in which it was given.
template <class T>
Config resolve_value(const Config& merged, const std::string& key) {
  const Config* given = merged.find(key);
  if (given == nullptr) return Config::null();
  const auto value = ConfigCodec<std::optional<T>>::parse(*given, key);
  return detail::keep_given(ConfigCodec<std::optional<T>>::dump(value), *given);
}

}  // namespace

namespace {

/// Of a setting that names a model or the like, what it names; else "".
std::string what_it_names(const CliArguments::Setting& setting) {
  static const std::vector<std::string> named = {"model",
                                                 "data",
                                                 "optimizer",
                                                 "scheduler",
                                                 "trainer.strategy",
                                                 "trainer.precision",
                                                 "trainer.profiler",
                                                 "trainer.optimizer",
                                                 "trainer.scheduler"};
  constexpr std::string_view kName = ".name";
  if (setting.value.is_null() || !setting.value.is_scalar()) return "";
  std::string path = setting.path;
  if (path.ends_with(kName)) path.resize(path.size() - kName.size());
  return std::find(named.begin(), named.end(), path) != named.end() ? path : "";
}

/// Puts what is named before its options, whose order on a command line is anybody's: they are of the new one.
std::vector<CliArguments::Setting> names_first(std::vector<CliArguments::Setting> settings) {
  for (auto name = settings.begin(); name != settings.end(); ++name) {
    const std::string what = what_it_names(*name);
    if (what.empty()) continue;
    const auto option = std::find_if(settings.begin(), name, [&](const CliArguments::Setting& earlier) {
      return earlier.path.starts_with(what + ".") && earlier.path != what + ".name";
    });
    std::rotate(option, name, name + 1);
  }
  return settings;
}

}  // namespace

Config merge_sources(const std::vector<std::string>& files, const std::vector<CliArguments::Setting>& settings,
                     const ConfigNames& names, const std::string& defaults) {
  Config merged = Config::mapping();
  if (!defaults.empty()) {
    Config source = Config::parse(defaults, {.source = "the program's defaults"});
    normalize(source, names);
    merge_source(merged, source, names);
  }
  for (const auto& file : files) {
    Config source = Config::load(file);
    normalize(source, names);
    merge_source(merged, source, names);
  }
  for (const auto& setting : names_first(settings)) {
    Config source = Config::mapping();
    source.set_path(setting.path, setting.value);
    normalize(source, names);
    merge_source(merged, source, names);
  }
  return merged;
}

Config resolve_config(const Config& merged, const ConfigNames& names) {
  Config resolved = Config::mapping();
  const Config seed = resolve_value<int64_t>(merged, "seed");
  if (!seed.is_null() && ConfigCodec<int64_t>::parse(seed, "seed") < 0)
    throw_out_of_range(seed.origin(), "seed", "at least 0, or null for a random one", seed.text());
  resolved.set("seed", seed);
  resolve_section(resolved, merged, "model", names.modules);
  resolve_section(resolved, merged, "data", names.data);
  resolved.set("trainer", resolve_trainer(merged.find("trainer"), names));
  resolved.set("ckpt", resolve_value<std::string>(merged, "ckpt"));
  if (const Config* of_export = merged.find("export"))
    resolved.set("export", schema_of<ExportCommandOptions>().resolve(*of_export, "export"));
  if (const Config* inspect = merged.find("inspect"))
    resolved.set("inspect", schema_of<DataCommandOptions>().resolve(*inspect, "inspect"));
  if (const Config* plan = merged.find("plan")) resolved.set("plan", schema_of<PlanOptions>().resolve(*plan, "plan"));
  if (const Config* sweep = merged.find("sweep"))
    resolved.set("sweep", schema_of<sweep::SweepOptions>().resolve(*sweep, "sweep"));
  for (const auto& section : names.sections)
    if (const Config* given = merged.find(section.name)) resolved.set(section.name, section.resolve(*given));
  return resolved;
}

}  // namespace levin
