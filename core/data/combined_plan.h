#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace levin {

/// How a combined loader takes batches of its parts, as Lightning's CombinedLoader does.
enum class CombinedMode {
  kMinSize,       ///< one of each part, until the first part ends
  kMaxSizeCycle,  ///< one of each part, until the longest ends; shorter ones begin again
  kMaxSize,       ///< one of each part that has not ended, until the longest ends
  kSequential,    ///< all of the first part, then all of the second, ...
};

}  // namespace levin

namespace levin::data {

/// Which batches of the parts a combined loader gives: a pure function of their lengths, so that a position in the
/// combined loader is one in each part.
struct CombinedPlan {
  CombinedMode mode = CombinedMode::kMaxSizeCycle;
  /// Batches of each part in one pass, of rank 0; nothing where it is unsized. In kMaxSizeCycle and kSequential all are
  /// known, and in kMaxSizeCycle above 0.
  std::vector<std::optional<int64_t>> lengths = {};

  /// Returns the number of combined batches; nothing where a part is unsized.
  std::optional<int64_t> num_batches() const;

  struct Place {
    int64_t pass = 0;   ///< over the part, in this epoch
    int64_t batch = 0;  ///< in that pass
    bool operator==(const Place&) const = default;
  };
  /// Returns where a part is in a combined batch; nothing where it has none there. An unsized part may end before.
  std::optional<Place> place(size_t part, int64_t batch) const;
  /// Returns how many passes over a part an epoch has.
  int64_t passes(size_t part) const;
};

}  // namespace levin::data
