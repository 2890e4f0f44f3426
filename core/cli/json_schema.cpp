#include <levin/core/cli/json_schema.h>

#include <levin/core/cli/data_command.h>
#include <levin/core/cli/export_command.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/optim/scheduler_option.h>
#include <levin/core/options/mesh_strategy.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/planning/strategy_choice.h>
#include <levin/core/precision/precision.h>
#include <levin/core/sweep/sweep_options.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string_view>
#include <vector>

namespace levin {
namespace {

using Json = nlohmann::ordered_json;

Json any_of(std::vector<Json> choices) { return {{"anyOf", std::move(choices)}}; }
const Json kNull = {{"type", "null"}};
/// YAML's unquoted words may be texts here although they look like numbers.
const Json kText = {{"type", {"string", "number", "boolean"}}};

/// A value of the type that FieldDoc::type names; of others anything goes.
Json of_type(std::string_view type) {
  const auto rest = [&](std::string_view start) { return type.substr(start.size()); };
  if (constexpr std::string_view kOrNull = " or null"; type.ends_with(kOrNull))
    return any_of({of_type(type.substr(0, type.size() - kOrNull.size())), kNull});
  if (type.starts_with("list of ")) {
    std::string_view item = rest("list of ");
    Json list = {{"type", "array"}};
    size_t digits = 0;
    while (digits < item.size() && item[digits] >= '0' && item[digits] <= '9') ++digits;
    if (digits > 0) {
      const int count = std::stoi(std::string(item.substr(0, digits)));
      item = item.substr(digits + 1);
      if (count != 1 && item.ends_with('s')) item.remove_suffix(1);
      list["minItems"] = list["maxItems"] = count;
    }
    list["items"] = of_type(item);
    return list;
  }
  if (type.starts_with("mapping of "))
    return {{"type", "object"}, {"additionalProperties", of_type(rest("mapping of "))}};
  if (type == "mapping") return {{"type", "object"}};
  if (type == "non-negative integer") return {{"type", "integer"}, {"minimum", 0}};
  if (type == "integer" || type == "number" || type == "boolean") return {{"type", std::string(type)}};
  if (type == "string" || type == "path") return kText;
  return Json::object();
}

/// Adds what FieldDoc::constraint says of a value. Other words than Schema's own say nothing to an editor.
void constrain(Json& value, std::string_view constraint) {
  if (value.contains("anyOf")) return constrain(value["anyOf"][0], constraint);
  if (!value.contains("type")) return;
  constexpr std::string_view kOneOf = "one of ";
  if (const size_t at = constraint.find(kOneOf); at != std::string_view::npos) {
    const bool is_number = value["type"] == "integer" || value["type"] == "number";
    Json names = Json::array();
    std::string_view rest = constraint.substr(at + kOneOf.size());
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(", "), rest.size());
      const std::string name(rest.substr(0, end));
      names.push_back(is_number ? Json::parse(name, nullptr, false) : Json(name));
      rest.remove_prefix(std::min(end + 2, rest.size()));
    }
    if (value["type"] == "array")
      value["items"] = {{"enum", names}};
    else
      value = {{"enum", names}};
    return;
  }
  for (const auto& [word, key] : {std::pair<std::string_view, const char*>{"at least ", "minimum"},
                                  {"at most ", "maximum"},
                                  {"above ", "exclusiveMinimum"},
                                  {"below ", "exclusiveMaximum"}}) {
    if (const size_t at = constraint.find(word); at != std::string_view::npos && value["type"] != "array") {
      const std::string_view rest = constraint.substr(at + word.size());
      const Json number = Json::parse(rest.substr(0, rest.find_first_of(", ")), nullptr, /*allow_exceptions=*/false);
      if (number.is_number()) value[key] = number;
    }
  }
}

Json property(const FieldDoc& field) {
  Json value = of_type(field.type);
  constrain(value, field.constraint);
  value["description"] =
      field.constraint.empty() ? field.doc : fmt::format("{}; {}: {}", field.doc, field.type, field.constraint);
  value["markdownDescription"] =
      fmt::format("{}\n\nDefault: `{}`", value["description"].get<std::string>(), field.default_value);
  return value;
}

Json options_of(const std::vector<FieldDoc>& fields) {
  Json properties = Json::object();
  for (const auto& field : fields) properties[field.name] = property(field);
  return {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

/// What is named in YAML: `ddp`, `{name: ddp, option: value}` or `{ddp: {option: value}}`.
class Named {
 public:
  template <class Base>
  explicit Named(const Registry<Base>& registry, const std::vector<FieldDoc>& common = {}) {
    for (const auto& item : registry.items()) {
      auto fields = item.fields;
      fields.insert(fields.end(), common.begin(), common.end());
      add(item.name, item.doc, options_of(fields));
    }
  }

  /// One of them, in any form; `further`: what may stand in its place.
  Json one(std::vector<Json> further = {}) const {
    std::vector<Json> forms = {words_};
    forms.insert(forms.end(), named_.begin(), named_.end());
    forms.push_back(single());
    forms.insert(forms.end(), further.begin(), further.end());
    return any_of(std::move(forms));
  }
  /// A list of them, or a mapping from their names.
  Json several(std::vector<Json> further = {}) const {
    std::vector<Json> forms = {{{"type", "array"}, {"items", one()}}, by_name_};
    forms.insert(forms.end(), further.begin(), further.end());
    return any_of(std::move(forms));
  }

 private:
  void add(const std::string& name, const std::string& doc, const Json& options) {
    words_["enum"].push_back(name);
    Json whole = options;
    whole["properties"]["name"] = {{"const", name}, {"description", doc}};
    whole["required"] = {"name"};
    named_.push_back(std::move(whole));
    Json value = any_of({options, kNull});
    value["description"] = doc;
    by_name_["properties"][name] = std::move(value);
  }
  Json single() const {
    Json mapping = by_name_;
    mapping["minProperties"] = mapping["maxProperties"] = 1;
    return mapping;
  }

  Json words_ = {{"enum", Json::array()}};
  std::vector<Json> named_;
  Json by_name_ = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
};

/// The sizes of a mesh, with the options of the strategy that divides along each dimension.
Json mesh_of(const Registry<Strategy>& strategies) {
  const Json size = any_of({{{"type", "integer"}, {"minimum", 1}}, {{"const", "auto"}}});
  Json mesh = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  for (const MeshDimension& dimension : kMeshDimensions) {
    const Registry<Strategy>::Item* const item = strategies.find(std::string(dimension.strategy));
    if (item == nullptr) continue;
    Json part = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
    for (const auto& field : fields_of(dimension, strategies)) part["properties"][field.name] = property(field);
    for (const auto& field : item->fields)
      if (is_rank_option(field.name)) mesh["properties"][field.name] = property(field);
    part["properties"]["size"] = size;
    mesh["properties"][std::string(dimension.name)] = any_of({size, part});
  }
  return mesh;
}

/// `auto` with a memory limit.
Json limited_auto(const Registry<Strategy>& strategies) {
  Json choice = {{"type", "object"}, {"required", {"name", "memory"}}, {"additionalProperties", false}};
  choice["properties"]["name"] = {{"const", "auto"}};
  for (const FieldDoc& field : schema_of<AutoStrategyOptions>().fields())
    choice["properties"][field.name] = property(field);
  if (const auto* ddp = strategies.find("ddp"))
    for (const FieldDoc& field : ddp->fields)
      if (is_rank_option(field.name)) choice["properties"][field.name] = property(field);
  return choice;
}

}  // namespace

std::string json_schema(const ConfigNames& names) {
  Json trainer = options_of(schema_of<TrainerOptions>().fields());
  const auto replace = [&](const char* option, Json value) {
    Json& place = trainer["properties"][option];
    value["description"] = place["description"];
    place = std::move(value);
  };
  const Json no = {{"type", "boolean"}};
  const Json automatic = {{"const", "auto"}};
  const Json optimizer = Named(names.optimizers).one({kNull});
  const Json scheduler = Named(names.schedulers, optim::common_scheduler_fields()).one({kNull});
  replace("callbacks", Named(names.callbacks).several({kNull}));
  replace("logger", Named(names.loggers).several({no, kNull, Named(names.loggers).one()}));
  replace("strategy",
          Named(names.strategies).one({automatic, limited_auto(names.strategies), mesh_of(names.strategies)}));
  replace("precision", Named(names.precisions).one({{{"type", "number"}}}));
  replace("profiler", Named(names.profilers).one({kNull}));
  replace("optimizer", optimizer);
  replace("scheduler", scheduler);
  Json weights = trainer["properties"]["init_from"];
  replace("init_from", any_of({weights, {{"type", "string"}}}));

  Json properties = Json::object();
  properties["seed"] = {{"type", {"integer", "null"}},
                        {"minimum", 0},
                        {"description", "seeds weights, data order and random transforms; null draws one"}};
  // A mapping without a name is about the first one, or about that of another file.
  const auto section = [&](const auto& registry) {
    Json any = Json::object();
    for (const auto& item : registry.items())
      for (const auto& field : item.fields) any[field.name] = property(field);
    return Named(registry).one({{{"type", "object"}, {"properties", any}, {"not", {{"required", {"name"}}}}}});
  };
  properties["model"] = section(names.modules);
  properties["data"] = section(names.data);
  properties["adapters"] = trainer["properties"]["adapters"];
  properties["optimizer"] = optimizer;
  properties["scheduler"] = scheduler;
  properties["trainer"] = std::move(trainer);
  properties["ckpt"] = {{"type", {"string", "null"}}, {"description", "last, best, auto or a path"}};
  properties["plan"] = options_of(schema_of<PlanOptions>().fields());
  properties["sweep"] = options_of(schema_of<sweep::SweepOptions>().fields());
  properties["export"] = options_of(schema_of<ExportCommandOptions>().fields());
  properties["inspect"] = options_of(schema_of<DataCommandOptions>().fields());
  for (const auto& section : names.sections) properties[section.name] = options_of(section.fields);
  const Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                       {"title", "a configuration of Levin"},
                       {"type", "object"},
                       {"properties", std::move(properties)},
                       {"additionalProperties", false}};
  return schema.dump(1);
}

}  // namespace levin
