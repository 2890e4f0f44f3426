#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::testing {

/// As much of a terminal as LiveLines uses: text, "\r", "\n", cursor up, erase to the end of the screen; long lines
/// wrap.
class Screen {
 public:
  explicit Screen(size_t columns) : columns_(columns) {}
  size_t columns() const { return columns_; }

  void write(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        column_ = 0;
      } else if (text[i] == '\n') {
        go_to(row_ + 1);
      } else if (text.substr(i).starts_with("\033[J")) {
        rows_.resize(row_ + 1);
        rows_[row_].resize(column_);
        i += 2;
      } else if (text[i] == '\033') {
        const size_t end = text.find('A', i);
        row_ -= std::stoul(std::string(text.substr(i + 2, end - i - 2)));
        i = end;
      } else {
        if (column_ == columns_) go_to(row_ + 1);
        rows_[row_].resize(std::max(rows_[row_].size(), column_ + 1), ' ');
        rows_[row_][column_++] = text[i];
      }
    }
  }
  /// A narrower window: the lines wrap anew.
  void resize(size_t columns) {
    columns_ = columns;
    const auto former = std::exchange(rows_, {""});
    row_ = column_ = 0;
    for (size_t i = 0; i < former.size(); ++i) write((i == 0 ? "" : "\r\n") + former[i]);
  }
  const std::vector<std::string>& rows() const { return rows_; }

 private:
  void go_to(size_t row) {
    row_ = row;
    column_ = 0;
    if (rows_.size() <= row) rows_.resize(row + 1);
  }

  size_t columns_;
  size_t row_ = 0;
  size_t column_ = 0;
  std::vector<std::string> rows_{""};
};

}  // namespace levin::testing
