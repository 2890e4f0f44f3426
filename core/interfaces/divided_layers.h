#pragma once

namespace levin {

/// Interface of strategies whose ranks have parts of the same layers, so that each forward of the module is one of all
/// of them, on the same batch or on one of each rank's own.
class DividedLayers {
 public:
  virtual ~DividedLayers() = default;
  /// Whether this strategy's options have it so, on more than one rank.
  virtual bool divides_layers() const = 0;
};

}  // namespace levin
