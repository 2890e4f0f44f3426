#pragma once

#include <cstdint>

namespace levin {

/// How many threads the operations of one rank may use when `local_ranks` ranks share this host: an equal part of the
/// cores, at least one. 0, for "as it is", where the user has set OMP_NUM_THREADS.
int64_t threads_of_rank(int64_t local_ranks);

/// Gives the calling thread, which is a rank, its share of the cores for good.
void take_core_share(int64_t local_ranks);

/// Gives the calling thread its share of the cores as long as the object lives. Threads that start meanwhile get the
/// same number.
class CoreShare {
 public:
  explicit CoreShare(int64_t local_ranks);
  ~CoreShare();
  CoreShare(const CoreShare&) = delete;
  CoreShare& operator=(const CoreShare&) = delete;

 private:
  const int before_;
};

}  // namespace levin
