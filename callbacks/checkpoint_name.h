#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace levin {

/// The pattern of a checkpoint's name: text with "{epoch}", "{step}" and "{metric:.2f}" in it. The part after the colon
/// is a format as Python's and {fmt}'s.
class CheckpointName {
 public:
  /// `insert_names`: "{epoch}" becomes "epoch=3" instead of "3". Throws ConfigError naming `option` for a pattern that
  /// cannot be a folder's name or that formats a number in no known way.
  CheckpointName(const std::string& pattern, bool insert_names, const std::string& option);

  /// The name with the values put in; "none" for a metric that is not there, which a warning says once with the names
  /// there are. A slash in a metric's name becomes "_", so that a name is never a path.
  std::string render(int64_t epoch, int64_t step, const std::map<std::string, double>& metrics) const;

 private:
  struct Part {
    std::string text;    ///< before the value
    std::string value;   ///< "epoch", "step" or a metric's name; empty: text only
    std::string format;  ///< "{:.2f}"
  };

  std::string option_;
  std::vector<Part> parts_;
  mutable std::set<std::string> missed_;  ///< metrics that were warned of
};

}  // namespace levin
