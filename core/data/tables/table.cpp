#include <levin/core/data/tables/table.h>

#include <algorithm>

namespace levin::data {

const TableColumn* Table::find(const std::string& name) const {
  const auto found =
      std::find_if(columns.begin(), columns.end(), [&](const TableColumn& column) { return column.name == name; });
  return found == columns.end() ? nullptr : &*found;
}

std::vector<std::string> Table::names() const {
  std::vector<std::string> names;
  for (const TableColumn& column : columns) names.push_back(column.name);
  return names;
}

}  // namespace levin::data
