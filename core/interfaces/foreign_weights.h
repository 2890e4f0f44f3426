#pragma once

#include <levin/core/interchange/weight_rules.h>

#include <string>

namespace levin {

/// What a module implements whose weights other programs save under names of their own, so that their files serve as
/// its checkpoint.
class ForeignWeights {
 public:
  virtual ~ForeignWeights() = default;
  /// Returns the rules that lead from the names in a file or folder of weights, which is no checkpoint of Levin, to the
  /// module's; none where it has these.
  virtual WeightRules rules_of(const std::string& path) const = 0;
};

}  // namespace levin
