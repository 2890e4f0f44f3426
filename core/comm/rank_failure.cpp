#include <levin/core/comm/rank_failure.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>

#include <fmt/format.h>

#include <chrono>
#include <sstream>
#include <thread>

namespace levin {
namespace {

using std::chrono::milliseconds;

/// For the first of several failing ranks to write down its failure.
constexpr milliseconds kWinnersTime{1000};
constexpr milliseconds kPause{10};

std::string encode(const RankFailure& failure) {
  return fmt::format("{} {} {}", failure.rank, failure.gone ? "gone" : "failed", failure.message);
}

RankFailure decode(const std::string& text) {
  RankFailure failure;
  std::string how;
  std::istringstream stream(text);
  stream >> failure.rank >> how;
  LEVIN_CHECK(stream && stream.get() == ' ', "a failure in the store reads RANK HOW MESSAGE; got '" + text + "'");
  failure.gone = how == "gone";
  failure.message = text.substr(static_cast<size_t>(stream.tellg()));
  return failure;
}

}  // namespace

std::string RankFailure::text() const {
  const std::string who = rank < 0 ? "the launcher" : fmt::format("rank {}", rank);
  return fmt::format("{} {}{}", who, gone ? "" : "failed: ", message);
}

RankFailure publish_failure(Store& store, const std::string& prefix, const RankFailure& failure) {
  if (store.add(prefix + "/failures", 1) > 1) {
    for (milliseconds waited{0}; waited < kWinnersTime; waited += kPause) {
      if (auto first = find_failure(store, prefix)) return std::move(*first);
      std::this_thread::sleep_for(kPause);
    }
    // The first one died before it could write: then this one is as good.
  }
  store.set(prefix + "/failure", encode(failure));
  return failure;
}

std::optional<RankFailure> find_failure(Store& store, const std::string& prefix) {
  const std::string key = prefix + "/failure";
  if (!store.contains(key)) return std::nullopt;
  return decode(store.get(key, kAnswerTime));
}

}  // namespace levin
