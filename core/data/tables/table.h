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
  std::vector<int64_t> lines = {};  ///< where each row begins in a CSV file, else its number; from 1

  /// Returns the number of rows.
  int64_t num_rows() const { return static_cast<int64_t>(lines.size()); }
  /// Returns the column of that name, or nullptr.
  const TableColumn* find(const std::string& name) const;
  /// Returns the names of all columns, in the file's order.
  std::vector<std::string> names() const;
};

/// How a table is read.
struct TableOptions {
  char delimiter = ',';  ///< of a CSV file
  bool header = true;    ///< whether a CSV file's first row has the names; else they are 0, 1, ...
  std::map<std::string, ColumnType> types = {};  ///< of columns whose values do not say it
  std::vector<std::string> columns = {};         ///< the only ones to read; empty: all
  std::vector<std::string> ignore = {};          ///< columns left out
  std::vector<std::string> missing = {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "?"};  ///< for values not known
};

}  // namespace levin::data
