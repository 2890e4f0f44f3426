// A module's on_train_batch_start that ends the epoch on some ranks only: the error names the hook.

#include "../support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/base/spec.h>

#include <gmock/gmock.h>

#include <string>
#include <tuple>

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::quiet;
using testing::tiny_loader;

struct EndsEpochOptions {
  std::string where;
  static void describe(Schema<EndsEpochOptions>& schema) {
    schema.field("where", &EndsEpochOptions::where, "first: on rank 0; last: on rank 1; both; none");
  }
};

class EndsEpoch : public testing::TinyModule {
 public:
  using Options = EndsEpochOptions;
  explicit EndsEpoch(const Options& options) : TinyModule(testing::TinyOptions{}), where_(options.where) {}

  bool on_train_batch_start(const Batch& /*batch*/, int64_t batch_idx) override {
    const bool ends = where_ == "both" || where_ == (trainer().is_global_zero() ? "first" : "last");
    return !ends || trainer().current_epoch() != 1 || batch_idx != 1;
  }
  void on_train_epoch_end() override {
    if (where_ == "both" && trainer().current_epoch() == 1) all_gather(at::ones({trainer().global_rank() + 1}));
  }

 private:
  std::string where_;
};

class UnequalEpochEnd : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(UnequalEpochEnd, IsNamed) {
  const auto& [strategy, where] = GetParam();
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = 2;
  Trainer trainer(options);
  try {
    trainer.fit(make<EndsEpoch>({.where = where}), tiny_loader());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr(std::string("epoch 1, in which on_train_batch_start of EndsEpoch returned false on rank ") +
                          (where == std::string("first") ? "0" : "1") + " for batch 1, and not on rank " +
                          (where == std::string("first") ? "1" : "0") + " (it must return the same on every rank)"));
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, UnequalEpochEnd,
                         ::testing::Combine(::testing::Values("{name: ddp_threads}", "{name: ddp_spawn}",
                                                              "{name: sharded_threads, stage: 3}"),
                                            ::testing::Values("first", "last")));

/// Its operations wait for each other instead of comparing what they are.
INSTANTIATE_TEST_SUITE_P(Gloo, UnequalEpochEnd,
                         ::testing::Combine(::testing::Values("{name: ddp_spawn, backend: gloo, timeout: 10}"),
                                            ::testing::Values("last")));

TEST(EqualEpochEnd, IsNoHintToAnotherMistake) {
  TrainerOptions options = quiet(2);
  options.strategy = "ddp_threads";
  options.devices = 2;
  Trainer trainer(options);
  try {
    trainer.fit(make<EndsEpoch>({.where = "both"}), tiny_loader());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("do not fit together"));
    EXPECT_THAT(error.what(), Not(HasSubstr("on_train_batch_start")));
  }
}

TEST(EqualEpochEnd, TrainsOn) {
  TrainerOptions options = quiet(3);
  options.strategy = "ddp_threads";
  options.devices = 2;
  Trainer trainer(options);
  trainer.fit(make<EndsEpoch>({.where = "none"}), tiny_loader());
  EXPECT_EQ(trainer.global_step(), 9);
}

}  // namespace
}  // namespace levin
