#include <levin/strategies/ranks/roll_call.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/communication_error.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/ranks/rank_watch.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <thread>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Between two looks at the store: short at first, as most ranks come soon.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};

std::string answer_key(int64_t rank) { return fmt::format("answer/{}", rank); }

void wait_for_answer(Store& store, RankWatch& watch, int64_t rank, int64_t member, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (milliseconds pause = kFirstPause; !store.contains(answer_key(member)) && !watch.is_lost(member);
       pause = std::min(2 * pause, kLongestPause)) {
    if (const auto failure = watch.failure(rank)) throw RankFailedError(*failure);
    if (Clock::now() > deadline)
      throw CommunicationError(
          "ranks", fmt::format("rank {} did not reach the barrier within {}", member, format_seconds(timeout)));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

RollCall RollCall::take(Store& store, RankWatch& watch, int64_t rank, const std::vector<int64_t>& members,
                        const std::string& answer, milliseconds timeout) {
  constexpr const char* kPresent = "present";
  store.set(answer_key(rank), answer);
  if (rank == members.front()) {
    for (const int64_t member : members) wait_for_answer(store, watch, rank, member, timeout);
    const std::vector<int64_t> lost = watch.end_losses();
    std::vector<int64_t> present = members;
    std::erase_if(present, [&](int64_t member) { return std::find(lost.begin(), lost.end(), member) != lost.end(); });
    store.set(kPresent, fmt::format("{}", fmt::join(present, " ")));
  }
  RollCall roll;
  std::istringstream present(store.get(kPresent, timeout));
  for (int64_t member = 0; present >> member;) roll.present.push_back(member);
  for (const int64_t member : members)
    if (store.contains(answer_key(member))) roll.answers.push_back(store.get(answer_key(member), kAnswerTime));
  return roll;
}

}  // namespace levin
