#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// How ranks are laid out over the ways in which a model and its data are divided: named dimensions, the outermost
/// first. Ranks next to each other differ along the innermost one.
class DeviceMesh {
 public:
  // Names of the dimensions of Levin's strategies, outermost first.
  static constexpr std::string_view kPipeline = "pipeline";    ///< ranks with different layers
  static constexpr std::string_view kReplicate = "replicate";  ///< with the same parameters and different data
  static constexpr std::string_view kShard = "shard";          ///< with parts of the same parameters and different data
  static constexpr std::string_view kContext = "context";      ///< with parts of the sequences of the same data
  static constexpr std::string_view kTensor = "tensor";        ///< with parts of the same layers and the same data

  struct Dimension {
    std::string name;
    int64_t size;
  };
  using Groups = std::vector<std::vector<int64_t>>;

  /// Throws ConfigError where the sizes do not make this number of ranks, where one is below 1, and for a name that
  /// stands twice.
  DeviceMesh(std::vector<Dimension> dimensions, int64_t ranks);

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  /// "pipeline 2 x shard 4"
  std::string text() const;
  /// Returns the size of a dimension; 1 for one that is not there.
  int64_t size(std::string_view name) const;
  /// Returns the place of a rank along a dimension; 0 for one that is not there.
  int64_t coordinate(int64_t rank, std::string_view name) const;
  /// Divides the ranks into groups of those that differ along these dimensions alone. Ranks of a group, and groups by
  /// their first ranks, are in ascending order.
  Groups groups(const std::vector<std::string_view>& names) const;

 private:
  std::vector<Dimension> dimensions_;
  int64_t ranks_;
};

}  // namespace levin
