#include <levin/loggers/checkpoint_picker.h>

#include <system_error>

namespace levin {

std::vector<CheckpointEvent> CheckpointPicker::after_save(const CheckpointEvent& event) {
  if (log_model_ == "all" && is_new(event.path)) return {event};
  if (log_model_ == "true") written_.push_back(event);
  return {};
}

std::vector<CheckpointEvent> CheckpointPicker::at_end() {
  std::vector<CheckpointEvent> picked;
  for (const auto& event : written_) {
    // A folder that was written again, such as "last", counts with its last event.
    std::erase_if(picked, [&](const CheckpointEvent& other) { return other.path == event.path; });
    if (event.is_best)
      for (auto& other : picked) other.is_best = false;
    picked.push_back(event);
  }
  written_.clear();
  std::erase_if(picked, [this](const CheckpointEvent& event) { return !is_new(event.path); });
  return picked;
}

bool CheckpointPicker::is_new(const std::string& path) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  return !error && picked_.emplace(path, time).second;
}

}  // namespace levin
