#pragma once

#include <levin/core/data/dataset.h>
#include <levin/core/data/json/json_column.h>
#include <levin/core/data/json/json_rows.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace levin::data {

/// Returns the columns of the first 1000 rows and what they have, in all rows: objects and lists of other things are
/// texts, of JSON. Throws levin::Error naming a column whose values differ in kind.
std::map<std::string, JsonColumn> find_columns(const JsonRows& rows);

/// Rows of JSON lines as examples. A batch has for each column: of texts the texts; of integers int64 [N], of numbers
/// float [N], of booleans bool [N]; of lists int64 or float [N, longest of the batch], padded with 0, beside
/// NAME_length and NAME_mask (see pad_collate).
class JsonExamples : public Dataset {
 public:
  /// `columns`: those that are read; a row that lacks one, or has another kind of value there, is an error.
  JsonExamples(std::shared_ptr<const JsonRows> rows, RowSelection selection, std::map<std::string, JsonColumn> columns);

  int64_t size() const override { return selection_.size(); }
  /// Throws levin::Error naming file, line and column.
  Batch get(int64_t index, Generator& generator) const override;
  CollateFunction collate() const override;

 private:
  std::shared_ptr<const JsonRows> rows_;
  RowSelection selection_;
  std::map<std::string, JsonColumn> columns_;
};

}  // namespace levin::data
