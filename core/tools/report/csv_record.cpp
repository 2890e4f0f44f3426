#include <levin/core/tools/report/csv_record.h>

namespace levin::report {

std::vector<std::string> take_csv_record(std::string_view& text) {
  std::vector<std::string> cells(1);
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

}  // namespace levin::report
