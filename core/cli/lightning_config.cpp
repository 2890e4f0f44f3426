#include <levin/core/cli/lightning_config.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/scheduler.h>

#include <fmt/format.h>

#include <cctype>

namespace levin {
namespace {

constexpr const char* kClass = "class_path";
constexpr const char* kArguments = "init_args";

/// "lightning.pytorch.callbacks.EarlyStopping" becomes "early_stopping".
std::string snake_case(const std::string& class_path) {
  const size_t dot = class_path.rfind('.');
  const std::string name = dot == std::string::npos ? class_path : class_path.substr(dot + 1);
  std::string snake;
  for (size_t i = 0; i < name.size(); ++i) {
    const auto letter = static_cast<unsigned char>(name[i]);
    const bool after_small = i > 0 && std::islower(static_cast<unsigned char>(name[i - 1])) != 0;
    const bool before_small =
        i > 0 && i + 1 < name.size() && std::islower(static_cast<unsigned char>(name[i + 1])) != 0;
    if (std::isupper(letter) != 0 && (after_small || before_small)) snake += '_';
    snake += static_cast<char>(std::tolower(letter));
  }
  return snake;
}

/// `name` as it is registered: classes of Lightning have the kind in their name ("tensor_board_logger").
template <class Base>
std::string registered_name(const std::string& name, const Registry<Base>& registry) {
  const auto plain = [](std::string text) {
    std::erase(text, '_');
    return text;
  };
  for (const std::string& ending : {std::string(), "_" + registry.kind()}) {
    if (!name.ends_with(ending)) continue;
    const std::string wanted = plain(name.substr(0, name.size() - ending.size()));
    for (const auto& item : registry.items())
      if (plain(item.name) == wanted) return item.name;
  }
  return "";
}

template <class Base>
void translate_class(Config& node, const Registry<Base>& registry, const std::string& path) {
  if (!node.is_mapping() || node.find(kClass) == nullptr) return;
  const Config given = *node.find(kClass);
  if (!given.is_scalar()) throw_wrong_type(given, path + "." + kClass, "the name of a class");
  const std::string name = registered_name(snake_case(given.text()), registry);
  if (name.empty())
    throw ConfigError(
        fmt::format("{}: {}.class_path names a class of Python; got '{}'; valid: name: one of {}; hint: a "
                    "class of C++ gets its name by its registry's add",
                    given.origin().describe(), path, given.text(), join(registry.names())));
  for (const auto& entry : node.entries())
    if (entry.key != kClass && entry.key != kArguments)
      throw ConfigError(fmt::format("{}: {}.{} stands beside class_path; valid: below init_args",
                                    entry.origin.describe(), path, entry.key));
  Config named = Config::mapping(node.origin());
  named.set("name", Config::scalar(name, /*quoted=*/false, given.origin()), given.origin());
  if (const Config* arguments = node.find(kArguments); arguments != nullptr && !arguments->is_null()) {
    if (!arguments->is_mapping()) throw_wrong_type(*arguments, path + "." + kArguments, "a mapping of options");
    named.merge(*arguments);
  }
  node = std::move(named);
}

template <class Base>
void translate_classes(Config& node, const Registry<Base>& registry, const std::string& path) {
  if (node.is_mapping() && node.find(kClass) != nullptr) {
    const Origin origin = node.origin();
    node = Config::sequence({std::move(node)}, origin);
  }
  if (!node.is_sequence()) return;
  std::vector<Config> items = node.items();
  for (size_t i = 0; i < items.size(); ++i) translate_class(items[i], registry, fmt::format("{}[{}]", path, i));
  node = Config::sequence(std::move(items), node.origin());
}

void rename(Config& source, const char* former, const char* present) {
  const Config* const given = source.find(former);
  if (given == nullptr) return;
  const Config value = *given;
  if (source.find(present) != nullptr)
    throw ConfigError(fmt::format("{}: '{}' is '{}' here, which is given too; hint: leave one out",
                                  value.origin().describe(), former, present));
  source.erase(former);
  source.set(present, value, value.origin());
}

}  // namespace

void translate_lightning_config(Config& source, const ConfigNames& names) {
  if (!source.is_mapping()) return;
  if (const Config* seed = source.find("seed_everything")) {
    // True draws one, as null does here; false leaves the seed to the process.
    const bool draws = seed->is_scalar() && !seed->quoted() && seed->text() == "true";
    if (draws) source.set("seed_everything", Config::null(seed->origin()), seed->origin());
    rename(source, "seed_everything", "seed");
  }
  rename(source, "ckpt_path", "ckpt");
  if (Config* model = source.find("model")) translate_class(*model, names.modules, "model");
  if (Config* data = source.find("data")) translate_class(*data, names.data, "data");
  if (Config* optimizer = source.find("optimizer")) translate_class(*optimizer, names.optimizers, "optimizer");
  rename(source, "lr_scheduler", "scheduler");
  if (Config* scheduler = source.find("scheduler")) translate_class(*scheduler, names.schedulers, "scheduler");
  Config* const trainer = source.find("trainer");
  if (trainer == nullptr || !trainer->is_mapping()) return;
  if (Config* callbacks = trainer->find("callbacks"))
    translate_classes(*callbacks, names.callbacks, "trainer.callbacks");
  if (Config* logger = trainer->find("logger")) translate_classes(*logger, names.loggers, "trainer.logger");
  if (Config* strategy = trainer->find("strategy")) translate_class(*strategy, names.strategies, "trainer.strategy");
  if (Config* profiler = trainer->find("profiler")) translate_class(*profiler, names.profilers, "trainer.profiler");
}

}  // namespace levin
