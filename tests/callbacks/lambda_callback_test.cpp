#include <levin/callbacks/lambda_callback.h>

#include "tiny_training.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::PlainModule;
using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;

TEST(LambdaCallback, CallsWhatIsThere) {
  const RunFolder folder;
  std::vector<std::string> calls;
  auto callback = std::make_shared<LambdaCallback>(LambdaCallbackOptions{
      .setup = [&](Trainer&, Module&, Stage stage) { calls.push_back(std::string("setup ") + to_string(stage)); },
      .on_train_epoch_end = [&](Trainer& trainer,
                                Module&) { calls.push_back("epoch " + std::to_string(trainer.current_epoch())); },
      .on_train_batch_start =
          [&](Trainer&, Module&, const Batch& batch, int64_t batch_idx) {
            calls.push_back("batch " + std::to_string(batch_idx) + " of " + std::to_string(batch.size()));
          }});
  Trainer(quiet_options(folder, 1, {callback})).fit(std::make_shared<PlainModule>(), tiny_batches(2), tiny_batches(1));
  EXPECT_EQ(calls, (std::vector<std::string>{"setup fit", "batch 0 of 2", "batch 1 of 2", "epoch 0"}));
}

TEST(LambdaCallback, IsMadeInOneExpression) {
  int64_t errors = 0;
  LambdaCallback direct({.on_exception = [&](Trainer&, Module&, const std::exception_ptr&) { ++errors; }});
  EXPECT_TRUE(make<LambdaCallback>({.on_fit_end = [](Trainer&, Module&) {}})->can_rebuild());
  EXPECT_EQ(errors, 0);
}

}  // namespace
}  // namespace levin
