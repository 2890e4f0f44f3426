#pragma once

#include <cstdint>
#include <string_view>

namespace levin {

class Collective;
class Ranks;

/// How the ranks of a call are laid out, as one of them sees it. Dimensions: "pipeline" (ranks with different layers),
/// "replicate" (with the same parameters), "shard" (with parts of the same parameters), "context" (with parts of the
/// same sequences) and "tensor" (with parts of the same layers); those of a strategy that does not divide along one
/// have size 1. Another name throws levin::Error.
class RankMesh {
 public:
  explicit RankMesh(Ranks& ranks) : ranks_(ranks) {}

  int64_t size(std::string_view dimension) const;
  /// This rank's place along a dimension, from 0.
  int64_t coordinate(std::string_view dimension) const;
  /// The ranks that differ from this one along a dimension alone, in the order of their coordinates; the identity where
  /// its size is 1.
  Collective& group(std::string_view dimension) const;

 private:
  Ranks& ranks_;
};

}  // namespace levin
