#pragma once

#include <cstdint>
#include <string>

namespace levin {

/// One call of the trainer (fit, validate, test, predict), as every local rank runs it.
class RankProgram {
 public:
  virtual ~RankProgram() = default;
  /// Runs the call as one local rank and returns when it is done. Throws what the rank threw.
  virtual void run(int64_t local_rank) = 0;
  /// Writes to `directory`, on rank 0, what the caller gets. For ranks in processes of their own that end with the
  /// call.
  virtual void save_outcome(const std::string& directory) = 0;
  /// Reads in the caller what save_outcome wrote.
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
