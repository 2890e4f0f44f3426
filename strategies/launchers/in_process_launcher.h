#pragma once

#include <levin/core/interfaces/launcher.h>

namespace levin {

/// The calling thread is the only rank.
class InProcessLauncher : public Launcher {
 public:
  void launch(const std::function<void()>& rank_main) override { rank_main(); }
};

}  // namespace levin
