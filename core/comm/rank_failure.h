#pragma once

#include <levin/core/comm/communication_error.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

class Store;

/// Failure that ended a job.
struct RankFailure {
  int64_t rank = 0;     ///< -1: the launcher, which served the store
  std::string message;  ///< of the rank's exception; of a rank that is gone, its end: "was ended by signal 9 (Killed)"
  bool gone = false;    ///< others noticed its end; it reported nothing itself

  /// Returns "rank 2 failed: MESSAGE", "rank 2 MESSAGE" for a rank that is gone, or "the launcher MESSAGE".
  std::string text() const;
};

/// Error of a rank that ends because another one failed.
class RankFailedError : public CommunicationError {
 public:
  explicit RankFailedError(const RankFailure& failure)
      : CommunicationError("ranks", failure.text()), failure_(failure) {}
  const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

/// Publishes a failure to all ranks that share the store and `prefix`, unless there is one. Returns the first failure.
RankFailure publish_failure(Store& store, const std::string& prefix, const RankFailure& failure);

/// Returns the first failure, if there is one. Never blocks.
std::optional<RankFailure> find_failure(Store& store, const std::string& prefix);

}  // namespace levin
