#include <levin/loggers/config_leaves.h>

#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>

namespace levin {
namespace {

void visit_below(const Config& node, const std::string& path,
                 const std::function<void(const std::string& path, const Config& value)>& visit) {
  if (!node.is_mapping() || node.entries().empty()) {
    if (!path.empty()) visit(path, node);
    return;
  }
  for (const auto& entry : node.entries())
    visit_below(entry.value, path.empty() ? entry.key : path + "." + entry.key, visit);
}

nlohmann::json json_of(const Config& node) {
  switch (node.kind()) {
    case Config::Kind::kNull:
      return nullptr;
    case Config::Kind::kSequence: {
      auto items = nlohmann::json::array();
      for (const auto& item : node.items()) items.push_back(json_of(item));
      return items;
    }
    case Config::Kind::kMapping: {
      auto entries = nlohmann::json::object();
      for (const auto& entry : node.entries()) entries[entry.key] = json_of(entry.value);
      return entries;
    }
    case Config::Kind::kScalar:
      break;
  }
  const std::string& text = node.text();
  if (node.quoted()) return text;
  if (text == "true" || text == "false") return text == "true";
  const char* end = text.data() + text.size();
  int64_t integer = 0;
  if (const auto result = std::from_chars(text.data(), end, integer); result.ec == std::errc() && result.ptr == end)
    return integer;
  double number = 0;
  if (const auto result = std::from_chars(text.data(), end, number);
      result.ec == std::errc() && result.ptr == end && std::isfinite(number))
    return number;
  return text;
}

}  // namespace

void for_each_leaf(const Config& config,
                   const std::function<void(const std::string& path, const Config& value)>& visit) {
  visit_below(config, "", visit);
}

std::string leaf_text(const Config& value) { return value.is_scalar() ? value.text() : value.to_flow(); }

std::string config_json(const Config& config) {
  return json_of(config).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace levin
