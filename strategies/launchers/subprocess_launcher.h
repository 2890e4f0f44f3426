#pragma once

#include <levin/core/base/process_end.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/launcher.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace levin {

struct SubprocessLauncherOptions {
  /// Place of this process, which is local rank 0; those of the other local ranks follow from it.
  ClusterPlace place = {};
  /// Called on another thread for each local rank that ends during a call, so that this one does not wait for it.
  /// Returns whether this call and later ones of the same launcher go on without the rank.
  std::function<bool(int64_t rank, const ProcessEnd& how)> on_end = {};
};

/// Starts local ranks as processes: this one, and further runs of this same program, which the first call starts and
/// which live until the program ends (see LocalRanks). They find their place in LEVIN_RANK, LEVIN_WORLD_SIZE,
/// LEVIN_LOCAL_RANK, LEVIN_LOCAL_WORLD_SIZE, LEVIN_NODE_RANK, LEVIN_MAIN_ADDRESS, LEVIN_MAIN_PORT and LEVIN_RUN_ID,
/// call watch_lifeline(), and run their part with InProcessLauncher.
class SubprocessLauncher : public Launcher {
 public:
  explicit SubprocessLauncher(SubprocessLauncherOptions options);

  /// Runs the program as local rank 0. When that fails because another local rank was killed, the latter is the error.
  void launch(RankProgram& program) override;

 private:
  const SubprocessLauncherOptions options_;
  std::atomic<bool> lacks_ranks_{false};
};

}  // namespace levin
