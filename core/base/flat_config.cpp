#include <levin/core/base/flat_config.h>

#include <algorithm>
#include <unordered_map>

namespace levin {
namespace {

bool is_named(const Config& item) { return item.is_mapping() && item.entries().size() == 1; }

void append(const Config& config, const std::string& path, FlatConfig& result) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  const auto& items = config.items();
  if (config.is_mapping() && !config.entries().empty()) {
    for (const auto& entry : config.entries()) append(entry.value, below(entry.key), result);
  } else if (std::any_of(items.begin(), items.end(), is_named) &&
             std::all_of(items.begin(), items.end(),
                         [](const Config& item) { return item.is_scalar() || is_named(item); })) {
    std::unordered_map<std::string, int> seen;
    for (const Config& item : items) {
      const std::string name = item.is_scalar() ? item.text() : item.entries().front().key;
      const int number = ++seen[name];
      const std::string item_path = below(number == 1 ? name : name + "#" + std::to_string(number));
      const Config* options = item.is_scalar() ? nullptr : &item.entries().front().value;
      if (options == nullptr || options->is_null() || (options->is_mapping() && options->entries().empty()))
        result.emplace_back(item_path, "{}");
      else
        append(*options, item_path, result);
    }
  } else {
    result.emplace_back(path, config.to_flow());
  }
}

}  // namespace

FlatConfig flatten(const Config& config) {
  FlatConfig result;
  if (!config.is_null()) append(config, "", result);
  return result;
}

std::vector<FlatConfigRow> compare_configs(const std::vector<FlatConfig>& configurations) {
  std::vector<FlatConfigRow> rows;
  std::unordered_map<std::string, size_t> row_of;
  for (size_t i = 0; i < configurations.size(); ++i) {
    for (const auto& [path, value] : configurations[i]) {
      const auto [entry, added] = row_of.try_emplace(path, rows.size());
      if (added)
        rows.push_back({.path = path, .values = std::vector<std::optional<std::string>>(configurations.size())});
      rows[entry->second].values[i] = value;
    }
  }
  for (auto& row : rows)
    row.differs = std::any_of(row.values.begin(), row.values.end(),
                              [&](const auto& value) { return value != row.values.front(); });
  return rows;
}

}  // namespace levin
