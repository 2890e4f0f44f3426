#pragma once

#include <cstdint>
#include <string>

namespace levin {

/// What every local rank runs: one call of the trainer (fit, validate, test, predict).
class RankProgram {
 public:
  virtual ~RankProgram() = default;
  /// Runs the call as one local rank and returns when it is done. Throws what the rank threw.
  virtual void run(int64_t local_rank) = 0;
  /// For ranks in processes of their own that end with the call: rank 0 leaves in `directory` what the caller gets ...
  virtual void save_outcome(const std::string& directory) = 0;
  /// ... and the caller takes it from there.
  virtual void load_outcome(const std::string& directory) = 0;
};

/// Starts the local ranks of a strategy.
class Launcher {
 public:
  virtual ~Launcher() = default;
  /// Runs the program on every local rank (in this process for one rank) and returns when all are done. The first error
  /// of any rank ends all ranks and is thrown.
  virtual void launch(RankProgram& program) = 0;
};

}  // namespace levin
