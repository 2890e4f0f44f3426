#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace levin::data {

/// What parse_csv gives the fields of a file to, in order. It may throw, which ends the parsing.
class CsvHandler {
 public:
  virtual ~CsvHandler() = default;
  /// Takes a field of the row that begins at `line`, counted from 1. The text is gone after the call; it has neither
  /// quotes nor, outside of quotes, spaces at its ends.
  virtual void field(std::string_view text, int64_t line) = 0;
  /// Takes the end of that row. Lines without anything are no rows.
  virtual void end_row(int64_t line) = 0;
};

/// Reads a CSV file as RFC 4180 has it: fields with delimiters, line ends or doubled quotes stand in quotes. Throws
/// levin::Error, led by file and line, where a quote is out of place or the file ends in quotes.
void parse_csv(const std::string& path, char delimiter, CsvHandler& handler);

}  // namespace levin::data
