#pragma once

#include <levin/core/comm/communication_error.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

class Store;

/// What ended a job.
struct RankFailure {
  int64_t rank = 0;  ///< -1: the launcher, which served the store
  std::string
      message;        ///< what the rank threw; of one that is gone, what became of it: "was ended by signal 9 (Killed)"
  bool gone = false;  ///< its end was noticed by others, it could not say anything itself

  /// "rank 2 failed: MESSAGE", "rank 2 MESSAGE" of one that is gone, or "the launcher MESSAGE".
  std::string text() const;
};

/// Another rank failed, and this one ends for that reason.
class RankFailedError : public CommunicationError {
 public:
  explicit RankFailedError(const RankFailure& failure) : CommunicationError("ranks", failure.text()) {}
};

/// Makes a failure known to all ranks that share the store and `prefix`, unless another one was first. Returns the one
/// that was first.
RankFailure publish_failure(Store& store, const std::string& prefix, const RankFailure& failure);

/// The failure that was first, if there is one. Never blocks.
std::optional<RankFailure> find_failure(Store& store, const std::string& prefix);

}  // namespace levin
