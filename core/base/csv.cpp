#include <levin/core/base/csv.h>

#include <utility>

namespace levin {

CsvRow take_csv_row(std::string_view& text) {
  CsvRow cells(1);
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      if (quoted && i + 1 < text.size() && text[i + 1] == '"')
        cells.back() += text[++i];
      else
        quoted = !quoted;
    } else if (quoted) {
      cells.back() += c;
    } else if (c == ',') {
      cells.emplace_back();
    } else if (c == '\n') {
      text.remove_prefix(i + 1);
      return cells;
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return {};
}

std::vector<CsvRow> parse_csv(std::string_view text) {
  std::vector<CsvRow> rows;
  for (CsvRow row = take_csv_row(text); !row.empty(); row = take_csv_row(text)) rows.push_back(std::move(row));
  return rows;
}

std::string csv_line(const CsvRow& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    if (&cell != &cells.front()) line += ',';
    if (cell.find_first_of(",\"\n\r") == std::string::npos) {
      line += cell;
      continue;
    }
    line += '"';
    for (const char c : cell) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    line += '"';
  }
  return line + "\n";
}

}  // namespace levin
