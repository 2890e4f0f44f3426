#pragma once

#include <levin/core/comm/collective.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace levin {

/// The order in which all ranks gather units, which must be the same: otherwise one rank's parameters would meet
/// another's. Ranks compare notes only where a unit follows another one for the first time, so that a step with nothing
/// new in it costs nothing.
class ExecutionOrder {
 public:
  /// `name_of`: of a unit, for messages.
  ExecutionOrder(Collective& group, std::function<std::string(int64_t)> name_of)
      : group_(group), name_of_(std::move(name_of)) {}

  /// Begins a pass over the model.
  void begin() { last_ = kStart; }
  /// Notes the next unit. A collective where it never followed the last one before. Throws levin::Error on all ranks,
  /// naming the units, where they do not agree.
  void next(int64_t unit);
  /// The unit that followed this one the last time; nothing where none did.
  std::optional<int64_t> expected_after(int64_t unit) const;
  /// The unit that a pass began with the last time.
  std::optional<int64_t> expected_first() const { return expected_after(kStart); }

 private:
  static constexpr int64_t kStart = -1;

  Collective& group_;
  std::function<std::string(int64_t)> name_of_;
  int64_t last_ = kStart;
  std::unordered_map<int64_t, int64_t> newest_;           ///< what followed a unit the last time
  std::unordered_map<int64_t, std::set<int64_t>> known_;  ///< all that ever followed it
};

}  // namespace levin
