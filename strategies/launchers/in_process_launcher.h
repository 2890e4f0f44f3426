#pragma once

#include <levin/core/interfaces/launcher.h>

#include <cstdint>

namespace levin {

/// Starts nothing: the calling thread is the only rank of this process. The other local ranks, if any, are processes
/// that something else started.
class InProcessLauncher : public Launcher {
 public:
  explicit InProcessLauncher(int64_t local_rank = 0) : local_rank_(local_rank) {}

  void launch(RankProgram& program) override { program.run(local_rank_); }

 private:
  const int64_t local_rank_;
};

}  // namespace levin
