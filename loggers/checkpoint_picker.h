#pragma once

#include <levin/core/base/events.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Says which checkpoints a logger keeps as artifacts, by its option log_model: "false" none, "all" each as it is
/// written, "true" at the end those that are still there. None twice.
class CheckpointPicker {
 public:
  explicit CheckpointPicker(std::string log_model) : log_model_(std::move(log_model)) {}

  /// Checkpoints to keep now that one more was written.
  std::vector<CheckpointEvent> after_save(const CheckpointEvent& event);
  /// Checkpoints to keep at the end of a call. At most one says `is_best`, the last one that was.
  std::vector<CheckpointEvent> at_end();

 private:
  bool is_new(const std::string& path);

  const std::string log_model_;
  std::vector<CheckpointEvent> written_;
  std::set<std::pair<std::string, std::filesystem::file_time_type>> picked_;
};

}  // namespace levin
