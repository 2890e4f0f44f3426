#include <levin/core/tools/report/metrics_csv.h>

#include <levin/core/base/csv.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace levin::report {
namespace {

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

struct Cell {
  size_t column;
  double value;
};

/// False when the row is not one of `columns` cells of numbers.
bool parse_row(std::string_view row, size_t columns, Point& point, std::vector<Cell>& cells) {
  cells.clear();
  for (size_t column = 0;; ++column) {
    const size_t comma = row.find(',');
    const std::string_view text = row.substr(0, comma);
    if (column == 1) {
      if (!parse(text, point.step)) return false;
    } else if (!text.empty()) {
      double value = 0;
      if (!parse(text, value)) return false;
      if (column == 0)
        point.epoch = value;
      else
        cells.push_back({column, value});
    }
    if (comma == std::string_view::npos) return column + 1 == columns;
    row.remove_prefix(comma + 1);
  }
}

}  // namespace

MetricsCsvFaults read_metrics_csv(const std::string& path, SeriesTable& table) {
  if (std::filesystem::is_directory(path)) throw Error("report", "cannot read " + path + ": it is a folder");
  const std::string content = FileSystem::current().read_file(path);
  std::string_view text = content;
  MetricsCsvFaults faults;
  if (text.empty()) return faults;
  const auto names = take_csv_row(text);
  if (names.empty()) {
    faults.is_torn = true;
    return faults;
  }
  if (names.size() < 2 || names[0] != "epoch" || names[1] != "step")
    throw Error("report", path + " is not a file of metrics: its first columns must be epoch,step; got '" +
                              names[0].substr(0, 80) + (names.size() > 1 ? "," + names[1].substr(0, 80) : "") + "'");

  std::vector<Cell> cells;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      faults.is_torn = true;
      break;
    }
    std::string_view row = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (row.ends_with('\r')) row.remove_suffix(1);
    Point point;
    if (!parse_row(row, names.size(), point, cells)) {
      ++faults.damaged_rows;
      continue;
    }
    for (const Cell& cell : cells) {
      point.value = cell.value;
      table.append(names[cell.column], point);
    }
  }
  return faults;
}

}  // namespace levin::report
