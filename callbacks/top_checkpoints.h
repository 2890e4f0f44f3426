#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/state.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// The list of the k best checkpoints, by the value of a monitored metric. It knows paths only and touches no file. NaN
/// ranks below every number; of equal values the one that came first ranks higher.
class TopCheckpoints {
 public:
  struct Item {
    std::string path;
    double score = 0;
  };

  /// `limit`: how many to keep; -1 for all.
  TopCheckpoints(MonitorMode mode, int64_t limit) : mode_(mode), limit_(limit) {}

  /// Whether a checkpoint of this score belongs on the list.
  bool accepts(double score) const;
  /// Path of the checkpoint that leaves the list when one is added now; empty while there is room.
  std::string next_superseded() const;
  /// Adds a checkpoint that was accepted, in place of any of the same path, or else of the one that leaves the list.
  /// Returns the path of the latter; empty where there is none.
  std::string add(const std::string& path, double score);

  /// The best one, or nullptr when there is none whose score is a number.
  const Item* best() const;
  /// The checkpoint that leaves next, or nullptr while there is room.
  const Item* worst_of_full() const;
  /// The checkpoints in the order in which they came.
  const std::vector<Item>& items() const { return items_; }

  /// Writes the list as mappings of "path" and "score". `to_saved` makes a path what is written.
  using PathFunction = std::function<std::string(const std::string& path)>;
  State to_state(const PathFunction& to_saved) const;
  /// Takes over the checkpoints of a saved list; of more than the limit, the best ones. `to_path` makes what was
  /// written a path again, and an empty one of a checkpoint that is gone. Returns how many are gone.
  int64_t load(const State& state, const PathFunction& to_path);

 private:
  const Item* worst() const;

  MonitorMode mode_;
  int64_t limit_;
  std::vector<Item> items_;
};

}  // namespace levin
