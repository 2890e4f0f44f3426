#pragma once

#include <cstdint>

namespace levin {

/// Gives the calling thread, which is a rank, its share of the cores for good; see threads_of_rank.
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
