#pragma once

#include <levin/core/trainer/call_scope.h>
#include <levin/core/trainer/run_request.h>
#include <levin/core/trainer/trainer.h>

#include <cstdint>
#include <memory>

namespace levin {

/// A further rank of a call, in a thread of this process: a trainer, a module, callbacks and loaders of its own, made
/// as those of rank 0 were; the data module and the data sets are shared. Callbacks that were handed over as objects
/// that cannot be made again (see levin::make) serve rank 0 alone; loggers always do. Made and run on the rank's
/// thread, in a ThreadGeneratorScope.
class ThreadRank {
 public:
  /// `first`: rank 0 of this process, whose options and request it follows. Throws levin::Error when the module cannot
  /// be made again.
  ThreadRank(const TrainerComponents& first, const std::shared_ptr<Strategy>& strategy, const RunRequest& request);
  ~ThreadRank();

  /// Runs the whole call on the calling thread.
  void run(int64_t local_rank);

 private:
  static TrainerOptions options_for(const TrainerComponents& first, const std::shared_ptr<Strategy>& strategy);

  Trainer trainer_;
  CallScope call_;
  RunRequest request_;
};

}  // namespace levin
