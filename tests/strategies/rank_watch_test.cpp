#include <levin/strategies/ranks/rank_watch.h>

#include <levin/core/base/signals.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/memory_store.h>

#include "../support/eventually.h"

#include <gtest/gtest.h>

#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace levin {
namespace {

/// What rank 0 of two knows, as text; "nothing".
std::string known_to(RankWatch& watch) {
  const auto failure = watch.failure(0);
  return failure ? failure->text() : "nothing";
}

/// The control plane of rank 0 of two, whose other rank was never there.
class WatchedControl {
 public:
  explicit WatchedControl(RankWatch& watch) : watch_(watch) {
    plane_ = std::make_unique<ControlPlane>(
        store_->clone(),
        ControlPlaneOptions{
            .world_size = 2, .prefix = "call", .store_rank = -1, .poll_interval = std::chrono::milliseconds(1)},
        rank_status_);
    watch_.attach(*plane_);
  }
  ~WatchedControl() { watch_.detach(); }

  ControlPlane& plane() { return *plane_; }

 private:
  RankWatch& watch_;
  std::unique_ptr<Store> store_ = make_memory_store();
  RankStatus rank_status_;
  std::unique_ptr<ControlPlane> plane_;
};

TEST(RankWatch, AnEndBeforeTheControlPlaneIsKeptForIt) {
  RankWatch watch;
  EXPECT_EQ(known_to(watch), "nothing");
  watch.rank_ended(1, "ended with status 0", /*in_good_order=*/true);
  const std::string text = "rank 1 ended with status 0 while joining the other ranks";
  EXPECT_EQ(known_to(watch), text);
  watch.rank_ended(2, "ended with status 1", /*in_good_order=*/false);  // the first counts
  EXPECT_EQ(known_to(watch), text);
  {
    WatchedControl control(watch);
    EXPECT_EQ(known_to(watch), text);
    EXPECT_THROW(control.plane().throw_if_failed(), RankFailedError);
  }
  watch.begin_joining();  // another call
  EXPECT_EQ(known_to(watch), "nothing");
}

TEST(RankWatch, OnceAllHaveJoinedAnEndInGoodOrderIsNone) {
  RankWatch watch;
  WatchedControl control(watch);
  watch.end_joining();
  watch.rank_ended(1, "ended with status 0", /*in_good_order=*/true);
  EXPECT_EQ(known_to(watch), "nothing");
  watch.rank_ended(1, "ended with status 1", /*in_good_order=*/false);
  EXPECT_EQ(known_to(watch), "rank 1 ended with status 1 while joining the other ranks");  // it never had a heartbeat
}

TEST(RankWatch, WhatComesAfterTheControlPlaneIsTheLaunchersAlone) {
  RankWatch watch;
  { const WatchedControl control(watch); }
  watch.rank_ended(1, "was ended by signal 9 (Killed)", /*in_good_order=*/false);
  EXPECT_EQ(known_to(watch), "nothing");
}

TEST(RankWatch, ASignalEndsJoiningAndNothingElse) {
  const SignalScope signals;
  RankWatch watch;
  raise(SIGTERM);
  EXPECT_EQ(known_to(watch), "rank 0 was interrupted by signal 15 (Terminated) while joining the other ranks");
  watch.end_joining();
  EXPECT_EQ(known_to(watch), "nothing");
}

// Without the watch between them, the launcher's thread used a control plane that was being destroyed.
TEST(RankWatch, AControlPlaneStaysWhileTheLauncherReports) {
  RankWatch watch;
  std::atomic<bool> over{false};
  std::thread launcher([&] {
    while (!over) watch.rank_ended(1, "was ended by signal 9 (Killed)", /*in_good_order=*/false);
  });
  for (int call = 0; call < 200; ++call) {
    watch.begin_joining();
    const WatchedControl control(watch);
    if (call % 2 == 0) watch.end_joining();
    if (call % 3 == 0) std::this_thread::yield();
  }
  over = true;
  launcher.join();
}

}  // namespace
}  // namespace levin
