#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin::report {

/// What a report takes from one record of an event file.
struct Event {
  double wall_time = 0;  ///< seconds since 1970
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> scalars;
  bool session_started = false;           ///< training began, or began again
  std::optional<bool> session_succeeded;  ///< training ended, and how
};

/// Reads TensorBoard's event files (TFRecord records that hold tensorflow.Event messages; see
/// loggers/event_file_writer.h) from the beginning to the last whole record. Whatever is no scalar is passed over.
class EventFileReader {
 public:
  /// Throws levin::Error when the file cannot be read.
  explicit EventFileReader(const std::string& path);

  /// False at the end.
  bool next(Event& event);

  /// Whether the end was in the middle of a record: the run still trains, was killed, or the file is damaged there.
  bool is_torn() const { return torn_; }
  /// Records passed over because their checksum or message was wrong.
  int64_t damaged_records() const { return damaged_; }

 private:
  bool next_record();

  std::ifstream file_;
  uint64_t left_ = 0;  ///< bytes not read yet
  std::string record_;
  bool torn_ = false;
  int64_t damaged_ = 0;
};

}  // namespace levin::report
