// Training on batches that differ in size: resuming with others, the few batches of overfit_batches, and what needs one
// size. Conformance tests have training, resuming and ranks.

#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/blend_stream.h>
#include <levin/core/data/token_batch_sampler.h>

#include "tests/support/tiny.h"

#include <gmock/gmock.h>

namespace levin {
namespace {

using namespace testing;
using ::testing::HasSubstr;

/// Batches of at most `max_tokens` of 40 examples with the lengths 1 to 5.
DataLoader batches_of(int64_t max_tokens) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 40; ++i) lengths.push_back(1 + i % 5);
  return DataLoader(tiny_dataset(40), {},
                    std::make_shared<data::TokenBatchSampler>(
                        std::move(lengths), data::TokenBatchSamplerOptions{.max_tokens = max_tokens}));
}

/// Trains for so many steps; returns the checkpoint at their end.
std::string train_for(int64_t steps, const DataLoader& loader, const std::string& ckpt = "") {
  seed_everything(5);
  TrainerOptions options = quiet(10);
  options.max_steps = steps;
  options.enable_checkpointing = true;
  options.default_root_dir = fresh_folder("batch_sampler");
  options.callbacks = {make<ModelCheckpoint>({.save_last = true})};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>(), loader, {}, ckpt);
  return trainer.checkpoint_callback()->last_model_path();
}

std::string message_of_resuming(const std::string& ckpt, const DataLoader& loader) {
  try {
    train_for(100, loader, ckpt);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(BatchSamplerFit, OtherBatchesDoNotGoOnInsideOfAnEpoch) {
  const int64_t batches = *batches_of(12).num_batches();
  const std::string inside = train_for(batches + 2, batches_of(12));
  EXPECT_EQ(message_of_resuming(inside, batches_of(12)), "");
  for (const DataLoader& other : {batches_of(17), tiny_loader(40, 8)})
    EXPECT_THAT(message_of_resuming(inside, other), HasSubstr("the checkpoint was saved inside of epoch 1, after"));
  EXPECT_THAT(message_of_resuming(train_for(2, tiny_loader(40, 8)), batches_of(12)),
              HasSubstr("inside of epoch 0, after 16 examples, with batches of other sizes than the training loader"));
  // At an epoch's end no batch is under way.
  const std::string end = train_for(batches, batches_of(12));
  EXPECT_EQ(message_of_resuming(end, batches_of(17)), "");
  EXPECT_EQ(message_of_resuming(end, tiny_loader(40, 8)), "");
  EXPECT_EQ(message_of_resuming(train_for(5, tiny_loader(40, 8)), batches_of(12)), "");
}

TEST(PlainLoaderFit, OtherExamplesOrAnotherOrderDoNotGoOnInsideOfAnEpoch) {
  const std::string inside = train_for(2, tiny_loader(40, 8));
  EXPECT_EQ(message_of_resuming(inside, tiny_loader(40, 8)), "");
  EXPECT_EQ(message_of_resuming(inside, tiny_loader(40, 4)), "") << "the order is the same";
  EXPECT_THAT(message_of_resuming(inside, tiny_loader(48, 8)),
              HasSubstr("after 16 examples, whose order was that of 40 examples, shuffled; got 48 examples, shuffled"));
  EXPECT_THAT(message_of_resuming(inside, tiny_loader(40, 8, /*shuffle=*/false)),
              HasSubstr("whose order was that of 40 examples, shuffled; got 40 examples; hint: train with the former"));
  EXPECT_EQ(message_of_resuming(train_for(5, tiny_loader(40, 8)), tiny_loader(48, 8)), "") << "an epoch's end";
}

/// The same row again and again, without a size.
class Endless : public data::IterableDataset {
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& /*context*/) const override {
    struct Rows : data::ExampleStream {
      std::optional<Batch> next() override { return Batch{{"x", at::ones({4})}, {"y", at::ones({1})}}; }
    };
    return std::make_unique<Rows>();
  }
};

TEST(BlendStream, AnotherMixIsAnotherOrder) {
  const auto mixed = [](double weight, data::BlendEnd end, int64_t examples) {
    const std::vector<data::BlendStream::Source> sources{
        {.name = "a", .weight = weight, .loader = DataLoader(std::make_shared<Endless>(), {.batch_size = 8})},
        {.name = "b", .weight = 1, .loader = DataLoader(std::make_shared<Endless>(), {.batch_size = 8})}};
    return std::make_shared<data::BlendStream>(sources, end, examples)->order();
  };
  const std::string order = mixed(1, data::BlendEnd::kRepeat, 100);
  EXPECT_EQ(order, "blend of a 1, b 1, 100 examples");
  for (const std::string& other : {mixed(2, data::BlendEnd::kRepeat, 100), mixed(1, data::BlendEnd::kLeave, 100),
                                   mixed(1, data::BlendEnd::kRepeat, 99)})
    EXPECT_NE(other, order);
}

TEST(BatchSamplerFit, OverfitsOnTheSameFewBatches) {
  std::vector<at::Tensor> seen;
  TrainerOptions options = quiet(3);
  options.overfit_batches = 2;
  options.callbacks = {make<LambdaCallback>(
      {.on_train_batch_start = [&](Trainer&, Module&, const Batch& batch, int64_t) { seen.push_back(batch["x"]); }})};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>(), batches_of(12));
  ASSERT_EQ(seen.size(), 6U);
  for (size_t i = 2; i < 6; ++i) EXPECT_TRUE(seen[i].equal(seen[i - 2])) << i;
}

TEST(BatchSamplerFit, EveryEpochHasAsManyBatchesAndAllExamples) {
  int64_t examples = 0;
  TrainerOptions options = quiet(4);
  options.callbacks = {make<LambdaCallback>(
      {.on_train_batch_start = [&](Trainer&, Module&, const Batch& batch, int64_t) { examples += batch.size(); }})};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>(), batches_of(12));
  EXPECT_EQ(examples, 4 * 40);
  EXPECT_EQ(trainer.total_batches(), 4 * *batches_of(12).num_batches());
}

TEST(BatchSamplerFit, WhatNeedsOneBatchSizeSaysSo) {
  TrainerOptions options = quiet(1);
  options.callbacks = {make<BatchSizeFinder>({})};
  Trainer trainer(options);
  try {
    trainer.fit(make<TinyModule>(), batches_of(12));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the batches of a batch sampler differ in size"));
  }
}

}  // namespace
}  // namespace levin
