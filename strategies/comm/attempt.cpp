#include <levin/strategies/comm/attempt.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/communication_error.h>

#include <fmt/format.h>

#include <random>
#include <thread>
#include <vector>

// No key can be trusted to be of this attempt, so every rank shows a number that it has just drawn, and rank 0 answers
// to that number. What rank 0 finds from an earlier attempt it answers too; nobody reads that.

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPause{10};

std::string draw_number() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

std::string hello_key(int64_t rank) { return fmt::format("attempt/hello/{}", rank); }
std::string answer_key(const std::string& number) { return "attempt/answer/" + number; }
std::string thanks_key(const std::string& attempt, int64_t rank) { return fmt::format("attempt/{}/{}", attempt, rank); }

std::string join_attempt(Store& store, int64_t rank, Milliseconds timeout) {
  const std::string number = draw_number();
  store.set(hello_key(rank), number);
  std::string attempt;
  try {
    attempt = store.get(answer_key(number), timeout);
  } catch (const RankFailedError&) {
    throw;
  } catch (const std::exception& error) {
    throw CommunicationError(
        "comm", fmt::format("rank {} had no answer from rank 0 in the launcher's store: {}; hint: did rank 0 "
                            "start?",
                            rank, error.what()));
  }
  store.set(thanks_key(attempt, rank), "here");
  return attempt;
}

/// Answers every number until all ranks of this attempt have had theirs.
std::string lead_attempt(Store& store, int64_t world_size, Milliseconds timeout, const WaitingInVain& in_vain) {
  const auto deadline = Clock::now() + timeout;
  const std::string attempt = draw_number();
  std::vector<std::string> answered(static_cast<size_t>(world_size));
  std::vector<int64_t> missing;
  for (int64_t rank = 1; rank < world_size; ++rank) missing.push_back(rank);
  while (true) {
    std::erase_if(missing, [&](int64_t rank) { return store.contains(thanks_key(attempt, rank)); });
    if (missing.empty()) return attempt;
    for (const int64_t rank : missing) {
      if (!store.contains(hello_key(rank))) continue;
      const std::string number = store.get(hello_key(rank), timeout);
      std::string& last = answered[static_cast<size_t>(rank)];
      if (number != last) store.set(answer_key(number), attempt);
      last = number;
    }
    if (Clock::now() > deadline) break;
    if (const auto failure = in_vain ? in_vain() : std::nullopt) throw RankFailedError(*failure);
    std::this_thread::sleep_for(kPause);
  }
  std::vector<std::string> names;
  for (const int64_t rank : missing) names.push_back(std::to_string(rank));
  throw CommunicationError(
      "comm", fmt::format("rank 0 waited {} ms for all {} ranks in the launcher's store; missing: {}", timeout.count(),
                          world_size, join(names)));
}

}  // namespace

std::string agree_on_attempt(Store& store, int64_t rank, int64_t world_size, Milliseconds timeout,
                             const WaitingInVain& in_vain) {
  return rank == 0 ? lead_attempt(store, world_size, timeout, in_vain) : join_attempt(store, rank, timeout);
}

}  // namespace levin
