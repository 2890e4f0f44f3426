#include <levin/loggers/checkpoint_picker.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace levin {

std::vector<CheckpointEvent> CheckpointPicker::after_save(const CheckpointEvent& event) {
  if (log_model_ == "all" && is_new(event.path)) return {event};
  if (log_model_ == "true") written_.push_back(event);
  return {};
}

std::vector<CheckpointEvent> CheckpointPicker::at_end() {
  std::vector<CheckpointEvent> picked;
  std::unordered_set<std::string> seen;
  bool has_best = false;
  std::for_each(written_.rbegin(), written_.rend(), [&](CheckpointEvent& event) {
    event.is_best = !std::exchange(has_best, has_best || event.is_best) && event.is_best;
    // A folder that was written again, such as "last", counts with its last event.
    if (seen.insert(event.path).second && is_new(event.path)) picked.push_back(std::move(event));
  });
  std::reverse(picked.begin(), picked.end());
  written_.clear();
  return picked;
}

bool CheckpointPicker::is_new(const std::string& path) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  return !error && picked_.emplace(path, time).second;
}

}  // namespace levin
