#include <levin/callbacks/monitor_moment.h>

#include <levin/core/options/metrics_due.h>
#include <levin/core/options/options.h>

#include <gtest/gtest.h>

#include <chrono>

namespace levin {
namespace {

TEST(MonitorMoment, ValidationOnceAnEpochMeansTheEpochsEnd) {
  const MonitorMoment moment({});
  EXPECT_TRUE(moment.is_train_epoch_end({}, false, 0));
  EXPECT_FALSE(moment.is_validation_end({}));
}

TEST(MonitorMoment, ValidationAtOtherTimesMeansAfterIt) {
  TrainerOptions twice;
  twice.val_check_interval = 0.5;
  TrainerOptions every_other;
  every_other.check_val_every_n_epoch = 2;
  for (const auto& options : {twice, every_other}) {
    const MonitorMoment moment({});
    EXPECT_TRUE(moment.is_validation_end(options));
    EXPECT_FALSE(moment.is_train_epoch_end(options, /*validated=*/true, 5));
  }
}

TEST(MonitorMoment, ValidationThatWasDueAndDidNotComeMeansTheEpochsEnd) {
  TrainerOptions options;
  options.check_val_every_n_epoch = 2;
  const MonitorMoment moment({});
  EXPECT_FALSE(moment.is_train_epoch_end(options, false, 0));
  EXPECT_TRUE(moment.is_train_epoch_end(options, false, 1));
  EXPECT_TRUE(moment.is_train_epoch_end(options, false, 2));
}

TEST(MonitorMoment, WithoutValidationBatchesTheEpochsEnd) {
  TrainerOptions options;
  options.val_check_interval = std::chrono::seconds(60);
  options.limit_val_batches = 0;
  const MonitorMoment moment({});
  EXPECT_TRUE(moment.is_train_epoch_end(options, false, 0));
  EXPECT_FALSE(moment.is_validation_end(options));
}

TEST(MonitorMoment, TheUsersChoiceCounts) {
  EXPECT_TRUE(MonitorMoment(false).is_validation_end({}));
  EXPECT_FALSE(MonitorMoment(false).is_train_epoch_end({}, false, 0));
  TrainerOptions twice;
  twice.val_check_interval = 0.5;
  EXPECT_FALSE(MonitorMoment(true).is_validation_end(twice));
  EXPECT_TRUE(MonitorMoment(true).is_train_epoch_end(twice, false, 0));
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
