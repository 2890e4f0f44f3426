#pragma once

namespace levin {

/// Options of backward in manual optimization.
struct BackwardOptions {
  /// Whether gradients are combined over the ranks. Without it they only add up on this rank, and the next backward
  /// that combines those of the same parameters combines what has added up too: accumulation that communicates once.
  bool sync_grad = true;
  bool retain_graph = false;  ///< another backward goes through the same graph
};

}  // namespace levin
