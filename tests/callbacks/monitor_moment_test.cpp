#include <levin/callbacks/monitor_moment.h>

#include <levin/core/options/metrics_due.h>
#include <levin/core/options/options.h>

#include <gtest/gtest.h>

#include <chrono>

namespace levin {
namespace {

TEST(MonitorMoment, ValidationOnceAnEpochMeansTheEpochsEnd) {
  EXPECT_TRUE(MonitorMoment({}).is_train_epoch_end({}, /*validates=*/true));
}

TEST(MonitorMoment, ValidationAtOtherTimesMeansAfterItWhereThereIsAny) {
  TrainerOptions twice;
  twice.val_check_interval = 0.5;
  TrainerOptions every_other;
  every_other.check_val_every_n_epoch = 2;
  TrainerOptions timed;
  timed.val_check_interval = std::chrono::seconds(60);
  TrainerOptions counted;
  counted.check_val_every_n_epoch.reset();
  counted.val_check_interval = 3;
  for (const auto& options : {twice, every_other, timed, counted}) {
    EXPECT_FALSE(MonitorMoment({}).is_train_epoch_end(options, /*validates=*/true));
    EXPECT_TRUE(MonitorMoment({}).is_train_epoch_end(options, /*validates=*/false));
  }
}

TEST(MonitorMoment, TheUsersChoiceCounts) {
  TrainerOptions twice;
  twice.val_check_interval = 0.5;
  for (const bool validates : {true, false}) {
    EXPECT_FALSE(MonitorMoment(false).is_train_epoch_end({}, validates));
    EXPECT_TRUE(MonitorMoment(true).is_train_epoch_end(twice, validates));
  }
}

TEST(MetricsDue, OnceValidationHadItsTurn) {
  EXPECT_FALSE(all_metrics_due({}, false, 0));
  EXPECT_TRUE(all_metrics_due({}, false, 1));
  TrainerOptions options;
  options.check_val_every_n_epoch = 3;
  EXPECT_FALSE(all_metrics_due(options, false, 2));
  EXPECT_TRUE(all_metrics_due(options, false, 3));
  options.check_val_every_n_epoch.reset();
  options.val_check_interval = 100;
  EXPECT_FALSE(all_metrics_due(options, false, 100));
  EXPECT_TRUE(all_metrics_due(options, /*validated=*/true, 0));
}

}  // namespace
}  // namespace levin
