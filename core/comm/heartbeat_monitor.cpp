#include <levin/core/comm/heartbeat_monitor.h>

#include <levin/core/base/log.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace levin {
namespace {

using std::chrono::milliseconds;

milliseconds to_milliseconds(HeartbeatMonitor::Clock::duration duration) {
  return std::chrono::duration_cast<milliseconds>(duration);
}

/// The activities of a step, in which minutes without any progress are no work. Others may well take hours: loading
/// data, saving, hooks at the end of an epoch.
bool is_part_of_step(const Heartbeat& heartbeat) {
  constexpr std::array<std::string_view, 4> kTraining = {"fetch_train_batch", "training_step", "backward",
                                                         "optimizer_step"};
  constexpr std::array<std::string_view, 6> kEvaluation = {"fetch_validation_batch", "validation_step",
                                                           "fetch_test_batch",       "test_step",
                                                           "fetch_predict_batch",    "predict_step"};
  const auto contain = [&](const auto& parts) {
    return std::find(parts.begin(), parts.end(), heartbeat.activity) != parts.end();
  };
  return heartbeat.evaluation.empty() ? heartbeat.batch >= 0 && contain(kTraining) : contain(kEvaluation);
}

}  // namespace

HeartbeatMonitor::HeartbeatMonitor(const ControlPlaneOptions& options)
    : options_(options), watched_((options.rank + 1) % options.world_size) {}

std::string HeartbeatMonitor::key(int64_t rank) const { return fmt::format("{}/heartbeat/{}", options_.prefix, rank); }

void HeartbeatMonitor::observe(const RankStatus& rank_status, Clock::time_point now) {
  const char* const waits_in = rank_status.collective.load(std::memory_order_relaxed);
  const std::string activity = rank_status.activity.load(std::memory_order_relaxed);
  const std::string collective = waits_in == nullptr ? "" : waits_in;
  const int64_t batch = rank_status.batch.load(std::memory_order_relaxed);
  const char* const evaluates = rank_status.evaluation.load(std::memory_order_relaxed);
  const std::string evaluation = evaluates == nullptr ? "" : evaluates;
  const int64_t evaluation_loader = rank_status.evaluation_loader.load(std::memory_order_relaxed);
  const int64_t evaluation_batch = rank_status.evaluation_batch.load(std::memory_order_relaxed);
  // A longer time between two looks means that this process did not run.
  if (last_observed_ != Clock::time_point{}) in_place_ += std::min(now - last_observed_, 2 * interval(options_));
  last_observed_ = now;
  if (since_ == Clock::time_point{} || batch != own_.batch || activity != own_.activity ||
      collective != own_.collective || evaluation != own_.evaluation || evaluation_loader != own_.evaluation_loader ||
      evaluation_batch != own_.evaluation_batch) {
    own_.batch = batch;
    own_.activity = activity;
    own_.collective = collective;
    own_.evaluation = evaluation;
    own_.evaluation_loader = evaluation_loader;
    own_.evaluation_batch = evaluation_batch;
    since_ = now;
    in_place_ = {};
    stall_reported_ = false;
  }
  own_.unchanged = to_milliseconds(now - since_);
}

void HeartbeatMonitor::beat(Store& store, Clock::time_point now) {
  ++own_.count;
  store.set(key(options_.rank), own_.encode());
}

void HeartbeatMonitor::leave(Store& store) {
  ++own_.count;
  own_.left = true;
  store.set(key(options_.rank), own_.encode());
}

void HeartbeatMonitor::leave_for(Store& store, int64_t rank) const {
  Heartbeat last = read(store, rank).value_or(Heartbeat{});
  ++last.count;
  last.left = true;
  store.set(key(rank), last.encode());
}

std::optional<Heartbeat> HeartbeatMonitor::read(Store& store, int64_t rank) const {
  if (!store.contains(key(rank))) return std::nullopt;
  return Heartbeat::decode(store.get(key(rank), kAnswerTime));
}

void HeartbeatMonitor::watch(int64_t rank) {
  watched_ = rank;
  last_text_.clear();
  silence_ = {};
}

std::optional<RankFailure> HeartbeatMonitor::look(Store& store, Clock::time_point now) {
  // A longer time between two looks means that this process did not run: the watched one could have been heard in it.
  const Clock::duration elapsed =
      last_look_ == Clock::time_point{} ? Clock::duration{} : std::min(now - last_look_, 2 * interval(options_));
  last_look_ = now;
  silence_ += elapsed;
  while (watched_ != options_.rank) {
    if (last_text_.empty() && !store.contains(key(watched_))) {
      if (silence_ < options_.start_timeout) return std::nullopt;
      return RankFailure{watched_, "is gone: nothing was ever heard of it in " + duration_text(options_.start_timeout),
                         true};
    }
    std::string text = store.get(key(watched_), kAnswerTime);
    const Heartbeat heartbeat = Heartbeat::decode(text);
    if (text == last_text_) {
      if (silence_ < options_.heartbeat_timeout) return std::nullopt;
      return RankFailure{watched_,
                         fmt::format("is gone: nothing was heard of it for {} (last seen {})",
                                     duration_text(to_milliseconds(silence_)), heartbeat.place()),
                         true};
    }
    last_text_ = std::move(text);
    silence_ = {};
    if (!heartbeat.left) return std::nullopt;
    watch((watched_ + 1) % options_.world_size);
  }
  return std::nullopt;
}

std::string HeartbeatMonitor::last_seen(Store& store, int64_t rank) const {
  const auto heartbeat = read(store, rank);
  return heartbeat ? " (last seen " + heartbeat->place() + ")" : " while joining the other ranks";
}

void HeartbeatMonitor::report_stall(Store& store, Clock::time_point now) {
  if (stall_reported_ || !own_.waits() || now - since_ < options_.stall_after) return;
  for (int64_t rank = 0; rank < options_.rank; ++rank)
    if (const auto heartbeat = read(store, rank); heartbeat && heartbeat->waits()) return;
  stall_reported_ = true;
  log::warning(fmt::format("rank {} waits in {} for {} by now; where each rank is:{}", options_.rank, own_.collective,
                           duration_text(to_milliseconds(now - since_)), places(store)));
}

std::string HeartbeatMonitor::places(Store& store) const {
  std::string table;
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    const std::optional<Heartbeat> heartbeat = rank == options_.rank ? own_ : read(store, rank);
    table += fmt::format("\n  rank {}: {}", rank, heartbeat ? heartbeat->sentence() : "was not heard of yet");
  }
  return table;
}

bool HeartbeatMonitor::all_wait(Store& store) const {
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    if (rank == options_.rank) continue;
    const auto heartbeat = read(store, rank);
    if (heartbeat && heartbeat->left) continue;
    // The lowest one speaks for all.
    if (rank < options_.rank || !heartbeat || !heartbeat->waits() || heartbeat->unchanged < options_.hang_after)
      return false;
  }
  return true;
}

std::optional<RankFailure> HeartbeatMonitor::look_for_hang(Store& store) const {
  if (options_.hang_after.count() == 0 || in_place_ < options_.hang_after) return std::nullopt;
  const bool deadlock = own_.waits();
  if (deadlock ? !all_wait(store) : !is_part_of_step(own_)) return std::nullopt;
  return RankFailure{
      options_.rank,
      fmt::format("hangs: it has been {} for {}{}{}", own_.place(), duration_text(to_milliseconds(in_place_)),
                  deadlock ? ", and all other ranks wait as well" : "",
                  options_.world_size == 1 ? "" : "; where each rank is:" + places(store)),
      true};
}

}  // namespace levin
