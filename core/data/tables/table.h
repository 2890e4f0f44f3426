#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace levin::data {

/// What the values of a column are: numbers, or words of which each is a category.
enum class ColumnType { kNumber, kCategory };

/// A column of a table.
struct TableColumn {
  std::string name = {};
  ColumnType type = ColumnType::kNumber;
  at::Tensor values = {};  ///< float64, NaN where missing; of categories int64 positions in them, -1 where missing
  std::vector<std::string> categories = {};  ///< in order: as numbers where all are whole numbers, else by their bytes
};

/// A table whose columns have types.
struct Table {
  std::string path = {};
  std::vector<TableColumn> columns = {};
  std::vector<int64_t> lines = {};  ///< where each row begins in the file, from 1

  /// Returns the number of rows.
  int64_t num_rows() const { return static_cast<int64_t>(lines.size()); }
  /// Returns the column of that name, or nullptr.
  const TableColumn* find(const std::string& name) const;
  /// Returns the names of all columns, in the file's order.
  std::vector<std::string> names() const;
};

/// How a table is read.
struct TableOptions {
  char delimiter = ',';
  bool header = true;                            ///< whether the first row has the names; else they are 0, 1, ...
  std::map<std::string, ColumnType> types = {};  ///< of columns whose values do not say it
  std::vector<std::string> ignore = {};          ///< columns left out
  std::vector<std::string> missing = {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "?"};  ///< for values not known
};

/// Reads a CSV file. A column without a given type has numbers where all of its values in the first 1000 rows are, else
/// categories. Throws levin::Error, led by file and line, where a row has more or fewer fields than the first, a value
/// of a column of numbers is none, or two columns have one name; and when the file has no rows, or `types` or `ignore`
/// name a column that it lacks.
Table read_csv(const std::string& path, const TableOptions& options = {});

}  // namespace levin::data
