#include <levin/core/data/tables/read_table.h>

#include <levin/core/base/error.h>
#include <levin/core/data/tables/column_values.h>
#include <levin/core/data/tables/csv_parser.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

namespace levin::data {

namespace {

/// Rows that say which columns have numbers.
constexpr size_t kSampleRows = 1000;

class TableBuilder : public CsvHandler {
 public:
  TableBuilder(const std::string& path, const TableOptions& options)
      : path_(path), options_(options), missing_(options.missing), in_header_(options.header) {}

  void field(std::string_view text, int64_t line) override {
    if (!has_columns_) {
      first_row_.emplace_back(text);
      return;
    }
    if (lines_.size() < kSampleRows) sample_bytes_ += text.size() + 1;
    if (place_ < columns_.size()) add(columns_[place_], text, line);
    ++place_;
  }

  void end_row(int64_t line) override {
    if (!has_columns_) {
      begin_table(line);
      if (in_header_) return;
      for (const std::string& text : std::exchange(first_row_, {})) field(text, line);
    }
    if (place_ != columns_.size())
      throw Error("data", fmt::format("{}:{}: the row has {}, the {} {}; hint: a field with the delimiter '{}' in it "
                                      "stands in quotes",
                                      path_, line, counted(static_cast<int64_t>(place_), "field"),
                                      options_.header ? "header" : "first row", columns_.size(), options_.delimiter));
    place_ = 0;
    lines_.push_back(line);
    if (lines_.size() == kSampleRows) {
      decide_types();
      reserve();
    }
  }

  Table finish() {
    if (lines_.empty())
      throw Error("data", fmt::format("{} has no rows{}", path_, has_columns_ ? " below its header" : ""));
    decide_types();
    Table table{.path = path_, .lines = std::move(lines_)};
    for (ColumnValues& column : columns_)
      if (!column.is_ignored) table.columns.push_back(column.finish());
    return table;
  }

 private:
  void begin_table(int64_t line) {
    std::vector<std::string> names;
    // The first column of a file that pandas wrote often has no name.
    for (size_t i = 0; i < first_row_.size(); ++i)
      names.push_back(in_header_ && !first_row_[i].empty() ? first_row_[i] : std::to_string(i));
    columns_ = make_columns(names, options_, path_, fmt::format("{}:{}", path_, line));
    has_columns_ = true;
    if (in_header_) first_row_.clear();
  }

  void add(ColumnValues& column, std::string_view text, int64_t line) {
    if (column.is_ignored) return;
    if (column.type)
      column.add(text, missing_, path_, line);
    else
      column.sample.emplace_back(text);
  }

  void decide_types() {
    for (ColumnValues& column : columns_) {
      if (column.type || column.is_ignored) continue;
      const bool has_words = std::any_of(column.sample.begin(), column.sample.end(), [&](const std::string& text) {
        return !missing_.contains(text) && !parse_number(text);
      });
      column.type = has_words ? ColumnType::kCategory : ColumnType::kNumber;
      const std::vector<std::string> sample = std::exchange(column.sample, {});
      for (size_t row = 0; row < sample.size(); ++row) add(column, sample[row], lines_[row]);
    }
  }

  /// Makes room for as many rows as the file has if they are as long as those of the sample, so that what is read is
  /// not moved again and again.
  void reserve() {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path_, error);
    if (error) return;
    const size_t rows = kSampleRows + bytes / std::max<size_t>(sample_bytes_ / kSampleRows, 1);
    lines_.reserve(rows);
    for (ColumnValues& column : columns_)
      if (!column.is_ignored) column.reserve(rows);
  }

  const std::string& path_;
  const TableOptions& options_;
  const MissingWords missing_;
  const bool in_header_;  ///< the first row has names
  bool has_columns_ = false;
  std::vector<std::string> first_row_;
  std::vector<ColumnValues> columns_;
  std::vector<int64_t> lines_;
  size_t place_ = 0;         ///< of the next field in its row
  size_t sample_bytes_ = 0;  ///< of the rows that say which columns have numbers
};

}  // namespace

Table read_table(const std::string& path, const TableOptions& options) {
  return path.ends_with(".parquet") ? read_parquet(path, options) : read_csv(path, options);
}

Table read_csv(const std::string& path, const TableOptions& options) {
  TableBuilder builder(path, options);
  parse_csv(path, options.delimiter, builder);
  return builder.finish();
}

}  // namespace levin::data
