#include <levin/loggers/config_leaves.h>

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

}  // namespace

void for_each_leaf(const Config& config,
                   const std::function<void(const std::string& path, const Config& value)>& visit) {
  visit_below(config, "", visit);
}

std::string leaf_text(const Config& value) { return value.is_scalar() ? value.text() : value.to_flow(); }

}  // namespace levin
