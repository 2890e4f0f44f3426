#pragma once

#include <functional>

namespace levin {

/// Starts the local ranks of a strategy and brings their result back.
class Launcher {
 public:
  virtual ~Launcher() = default;
  /// Runs `rank_main` on every local rank (in this process for one rank) and returns when all are done. The first error
  /// of any rank ends all ranks and is thrown.
  virtual void launch(const std::function<void()>& rank_main) = 0;
};

}  // namespace levin
