#include <levin/callbacks/live_lines.h>

#include <levin/callbacks/progress_line.h>
#include <levin/core/base/error.h>

#include <algorithm>

namespace levin {

size_t LiveLines::usable_columns() const { return std::max<size_t>(columns_(), 2) - 1; }

/// Back to the start of the first line, then everything below goes. A line drawn when the terminal was wider takes
/// several rows by now.
std::string LiveLines::erasure() const {
  if (lines_.empty()) return "";
  const size_t columns = std::max<size_t>(columns_(), 1);
  size_t rows = 0;
  for (const auto& line : lines_) rows += std::max<size_t>(1, (count_characters(line) + columns - 1) / columns);
  const std::string up = rows > 1 ? "\033[" + std::to_string(rows - 1) + "A" : "";
  return "\r" + up + "\033[J";
}

void LiveLines::draw(std::vector<std::string> lines) {
  const MutexLock lock(mutex_);
  const std::string text = erasure() + join(lines, "\n");
  lines_ = std::move(lines);
  if (!text.empty()) write_(text);
}

void LiveLines::print(const std::string& text) {
  const MutexLock lock(mutex_);
  write_(erasure() + text + "\n" + join(lines_, "\n"));
}

void LiveLines::make_way(const std::function<void()>& print) {
  const MutexLock lock(mutex_);
  if (!lines_.empty()) write_(erasure());
  print();
  if (!lines_.empty()) write_(join(lines_, "\n"));
}

}  // namespace levin
