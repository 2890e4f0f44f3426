#include <levin/strategies/ranks/rank_watch.h>

#include <levin/core/base/signals.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/control_plane.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace levin {

void RankWatch::begin_joining() {
  const MutexLock lock(mutex_);
  joining_ = true;
  failure_.reset();
  first_bearable_.reset();
}

void RankWatch::attach(ControlPlane& control) {
  const MutexLock lock(mutex_);
  control_ = &control;
  if (failure_) control.report_gone(failure_->rank, failure_->message);
}

void RankWatch::attach(const std::shared_ptr<Collective>& collective) {
  const MutexLock lock(mutex_);
  std::erase_if(collectives_, [&](const auto& other) {
    const auto alive = other.lock();
    return alive == nullptr || alive == collective;
  });
  collectives_.push_back(collective);
}

void RankWatch::end_joining() {
  const MutexLock lock(mutex_);
  joining_ = false;
}

void RankWatch::detach() {
  const MutexLock lock(mutex_);
  joining_ = false;
  control_ = nullptr;
  first_bearable_.reset();
}

void RankWatch::rank_ended(int64_t rank, const std::string& how, bool in_good_order) {
  // Held during the report, which takes moments: so the control plane stays that long.
  const MutexLock lock(mutex_);
  if (in_good_order && !joining_) return;
  if (control_ != nullptr)
    control_->report_gone(rank, how);
  else if (joining_ && !failure_)
    failure_ = RankFailure{.rank = rank, .message = how, .gone = true};
}

void RankWatch::bear_losses(int64_t first) {
  const MutexLock lock(mutex_);
  first_bearable_ = first;
}

std::vector<int64_t> RankWatch::end_losses() {
  const MutexLock lock(mutex_);
  first_bearable_.reset();
  return lost_;
}

bool RankWatch::lose(int64_t rank, const std::string& how) {
  const MutexLock lock(mutex_);
  if (!first_bearable_ || rank < *first_bearable_ || control_ == nullptr) return false;
  lost_.push_back(rank);
  control_->leave_out(rank, how);
  return true;
}

bool RankWatch::is_lost(int64_t rank) {
  const MutexLock lock(mutex_);
  return std::find(lost_.begin(), lost_.end(), rank) != lost_.end();
}

void RankWatch::abort(const std::string& reason) {
  std::vector<std::shared_ptr<Collective>> alive;
  {
    const MutexLock lock(mutex_);
    for (const auto& collective : collectives_) alive.push_back(collective.lock());
  }
  for (const auto& collective : alive)
    if (collective != nullptr) collective->abort(reason);
}

std::optional<RankFailure> RankWatch::failure(int64_t rank) {
  const MutexLock lock(mutex_);
  const int signal = SignalScope::received();
  if (joining_ && signal != 0) {
    const RankFailure interrupted{
        .rank = rank,
        .message =
            fmt::format("was interrupted by signal {} ({}) while joining the other ranks", signal, strsignal(signal)),
        .gone = true};
    if (control_ != nullptr) control_->report_failure(interrupted.message);
    return interrupted;
  }
  if (control_ != nullptr) return control_->failure_of_other(std::chrono::seconds(0));
  auto failure = failure_;
  if (failure) failure->message += " while joining the other ranks";  // as the control plane would say
  return failure;
}

}  // namespace levin
