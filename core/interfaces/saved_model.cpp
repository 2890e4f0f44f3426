#include <levin/core/interfaces/saved_model.h>

#include <levin/core/base/config.h>
#include <levin/core/base/error.h>
#include <levin/core/base/utf8.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <typeinfo>
#include <vector>

namespace levin {
namespace {

/// Of the whole tensor.
at::IntArrayRef shape_of(const TensorLeaf& leaf) {
  if (leaf.saved != nullptr) return leaf.saved->shape();
  return leaf.placement.kind == Placement::Kind::kSharded ? at::IntArrayRef(leaf.placement.global_shape)
                                                          : leaf.value.sizes();
}

/// "Classifier ('mlp') with {width: 8}"
std::string described(const std::string& type, const std::string& name, const std::string& options) {
  constexpr size_t kMostOptions = 300;
  std::string text = shown_text(type, 100);
  if (!name.empty() && name != type) text += fmt::format(" ('{}')", shown_text(name, 100));
  if (!options.empty()) text += " with " + shown_text(options, kMostOptions);
  return text;
}

std::string flow(const std::string& yaml) {
  try {
    return yaml.empty() ? "" : Config::parse(yaml, {}).to_flow();
  } catch (const ConfigError&) {
    return yaml;
  }
}

/// "; got Encoder ('encoder') with {...}; this is Classifier with {...}"; empty where it is not known.
std::string makers(const Module& module, const State* saved) {
  const auto text_of = [&](const char* key) {
    const State* value = saved == nullptr ? nullptr : saved->find(key);
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  };
  const std::string type = text_of("type");
  if (type.empty()) return "";
  const std::string options = module.init_options().is_null() ? "" : module.init_options().to_flow();
  return fmt::format("; got {}; valid: {}", described(type, text_of("name"), flow(text_of("options"))),
                     described(detail::demangled(typeid(module).name()), module.init_name(), options));
}

}  // namespace

void check_saved_model(const Module& module, const SavedModel& saved) {
  std::set<std::string, std::less<>> unused;
  for (const auto& [name, value] : saved.tensors.as_map()) unused.insert(name);
  std::vector<std::string> missing;
  std::vector<std::string> other_shape;
  for (const auto& [name, tensor] : saved_tensors(module)) {
    if (unused.erase(name) == 0) {
      missing.push_back(name);
      continue;
    }
    const at::IntArrayRef shape = shape_of(saved.tensors.at(name).as_leaf());
    if (shape != tensor.sizes())
      other_shape.push_back(fmt::format("{} ({} in the checkpoint, {} in the module)", shown_text(name, 100),
                                        c10::str(shape), c10::str(tensor.sizes())));
  }
  // What has become non-persistent since.
  for (const auto& [name, tensor] : named_tensors(module)) unused.erase(name);
  if (missing.empty() && unused.empty() && other_shape.empty()) return;
  std::string text =
      fmt::format("{} is of another model{}", saved.path.empty() ? "the checkpoint" : "the checkpoint " + saved.path,
                  makers(module, saved.hyper_parameters));
  const auto add = [&](const char* what, const std::vector<std::string>& names, size_t most) {
    if (!names.empty()) text += fmt::format("; {} {}: {}", names.size(), what, shown_names(names, most));
  };
  add("not in the checkpoint", missing, 5);
  add("not in the module", {unused.begin(), unused.end()}, 5);
  add("of another shape", other_shape, 3);
  throw Error("checkpoint", text +
                                "; hint: build the module with the options that it was saved with (levin-checkpoint "
                                "show prints them)");
}

void load_saved_model(const Module& module, const SavedModel& saved, const std::function<void(const State&)>& load) {
  try {
    load(saved.tensors);
  } catch (const Error&) {
    check_saved_model(module, saved);  // says more than a check of the tensors alone
    throw;
  }
}

}  // namespace levin
