#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace levin {

class RankWatch;
class Store;

/// Who of the ranks is still there, and what they said. A collective cannot tell: it breaks with the first that is
/// gone.
struct RollCall {
  std::vector<int64_t> present;      ///< in their order
  std::vector<std::string> answers;  ///< of all that came, those among them that were killed since too

  /// Waits for the ranks of `members`, which all call this with the same ones and a store of their own for it, and for
  /// no one of whom the first member's `watch` says that it is lost; whoever is killed later is a failure again.
  /// Throws RankFailedError once a failure is known, CommunicationError after `timeout`.
  static RollCall take(Store& store, RankWatch& watch, int64_t rank, const std::vector<int64_t>& members,
                       const std::string& answer, std::chrono::milliseconds timeout);
};

}  // namespace levin
