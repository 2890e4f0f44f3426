#include <levin/core/nn/unit_patterns.h>

#include <levin/core/base/error.h>
#include <levin/core/base/wildcard.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace levin {
namespace {

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

[[noreturn]] void throw_meets_nothing(const std::string& option, const std::string& pattern,
                                      const std::vector<NamedUnit>& units) {
  if (units.empty())
    throw ConfigError(
        fmt::format("{}: pattern '{}' matches no unit; the module declares no units; hint: declare the holders of its "
                    "blocks with LEVIN_UNIT instead of TORCH_MODULE, or use levin::Sequential",
                    option, pattern));
  std::vector<std::string> names;
  for (const auto& unit : units) {
    names.push_back(unit.type);
    names.push_back(unit.path);
  }
  const std::string nearest = nearest_name(pattern, names);
  throw ConfigError(
      fmt::format("{}: pattern '{}' matches no unit{}; valid: {}, their paths, and patterns of these with *", option,
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

std::vector<NamedUnit> select_units(torch::nn::Module& module, const std::vector<std::string>& patterns,
                                    const std::string& option) {
  const std::vector<NamedUnit> units = named_units(module);
  std::set<size_t> taken;
  for (const auto& pattern : patterns) {
    const std::set<size_t> more = taken_by(pattern, units);
    if (more.empty()) throw_meets_nothing(option, pattern, units);
    taken.insert(more.begin(), more.end());
  }
  std::vector<NamedUnit> selected;
  for (const size_t index : taken) selected.push_back(units[index]);
  return selected;
}

}  // namespace levin
