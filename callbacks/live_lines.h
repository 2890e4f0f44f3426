#pragma once

#include <levin/core/base/mutex.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// The last lines of a terminal, redrawn in place, with a way to print above them. May be used from several threads:
/// log messages come from any.
///
/// Between calls the cursor stands behind the last line, so that a program that dies leaves the terminal usable.
class LiveLines {
 public:
  using Writer = std::function<void(std::string_view)>;
  using Width = std::function<size_t()>;

  /// `columns`: the terminal's present width.
  LiveLines(Writer write, Width columns) : write_(std::move(write)), columns_(std::move(columns)) {}

  /// Columns that a line may take; one stays free, since a full line makes some terminals wrap.
  size_t usable_columns() const;
  /// Replaces what is drawn.
  void draw(std::vector<std::string> lines);
  /// Takes away what is drawn.
  void erase() { draw({}); }
  /// Prints text that stays, above what is drawn.
  void print(const std::string& text);
  /// Takes away what is drawn while another one prints, who may write to the same terminal.
  void make_way(const std::function<void()>& print);

 private:
  std::string erasure() const LEVIN_REQUIRES(mutex_);

  const Writer write_;
  const Width columns_;
  Mutex mutex_;
  std::vector<std::string> lines_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin
