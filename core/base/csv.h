#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Cells of a record of comma-separated values, in the form of RFC 4180: a quoted one may hold commas, line ends and,
/// as two of them, quotation marks.
using CsvRow = std::vector<std::string>;

/// Takes a record off the front of `text`; none when the record has no end, because its writer was killed.
CsvRow take_csv_row(std::string_view& text);

/// Reads all records that have an end.
std::vector<CsvRow> parse_csv(std::string_view text);

/// Returns a record with its line end.
std::string csv_line(const CsvRow& cells);

}  // namespace levin
