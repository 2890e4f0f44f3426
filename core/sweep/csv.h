#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace levin::sweep {

using CsvRow = std::vector<std::string>;

/// The rows of a text in the form of RFC 4180; cells in quotation marks may hold commas and line ends. A last row that
/// does not end in a line end is left out: its writer was killed.
std::vector<CsvRow> parse_csv(std::string_view text);

/// A row with its line end.
std::string csv_line(const CsvRow& cells);

}  // namespace levin::sweep
