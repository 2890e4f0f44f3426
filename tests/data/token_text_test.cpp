// Texts as tokens: blocks and lines, and one message for each mistake.

#include <levin/core/data/token_text.h>

#include "reader_checks.h"
#include "small_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

TEST(TokenText, GivesBlocksAndTheTokensThatFollow) {
  const TemporaryFolder folder;
  const std::string tokenizer = folder.write("t.json", testing::small_tokenizer().dump());
  const std::string path = folder.write("text", "the then<end>abcdefgh");
  auto data = make<TokenText>(
      {.path = path, .tokenizer = tokenizer, .length = 3, .val_fraction = 0.25, .batch_size = 8, .shuffle = false});
  data->setup(Stage::kFit);
  const auto batches = testing::all_batches(data->train_dataloader());
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_TRUE(
      batches[0]["tokens"].equal(torch::tensor({{257, 32, 257}, {'n', 258, 'a'}, {'b', 'c', 'd'}}, torch::kLong)));
  EXPECT_TRUE(
      batches[0]["next"].equal(torch::tensor({{32, 257, 'n'}, {258, 'a', 'b'}, {'c', 'd', 'e'}}, torch::kLong)));
  EXPECT_TRUE(testing::all_batches(data->val_dataloader().at(0))
                  .at(0)["tokens"]
                  .equal(torch::tensor({{'e', 'f', 'g'}}, torch::kLong)));
  EXPECT_EQ(data->tokenizer().decode({257, 32, 258}), "the <end>");
  EXPECT_EQ(data->tokenizer().decode(data->tokenizer().encode("the other day")), "the other day");
  EXPECT_EQ(data->tokenizer().decode(std::vector<int64_t>{257, 32, 258}), "the <end>");
}

TEST(TokenText, GivesBatchesOfABudgetOfTokens) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += std::string(static_cast<size_t>(1 + i * i % 23), 'a') + '\n';
  Config config = Config::parse(
      "{example: line, length: 20, padding: 7, pad_to: longest, val_fraction: 0.1, "
      "sampler: {token_batches: {max_tokens: 60, num_buckets: 4}}}",
      {});
  config.set("path", Config::scalar(folder.write("text", text), true));
  config.set("tokenizer", Config::scalar(folder.write("t.json", testing::small_tokenizer().dump()), true));
  auto data = make<TokenText>(parse_options<TokenTextOptions>(config, "data"));
  data->setup(Stage::kFit);
  int64_t lines = 0;
  for (const Batch& batch : testing::all_batches(data->train_dataloader())) {
    EXPECT_LE(batch["text"].numel(), 60);
    EXPECT_EQ(batch["text"].size(1), batch["length"].max().item<int64_t>());
    EXPECT_EQ(batch["text"].eq('a').sum().item<int64_t>(), batch["length"].sum().item<int64_t>());
    lines += batch.size();
  }
  EXPECT_EQ(lines, 54);
  EXPECT_EQ(testing::all_batches(data->val_dataloader().at(0)).at(0).size(), 6) << "of the batch size";

  config.set("sampler", Config::parse("{token_batches: {max_tokens: 18}}", {}));
  EXPECT_THAT(message_of([&] {
                auto too_long = make<TokenText>(parse_options<TokenTextOptions>(config, "data"));
                too_long->setup(Stage::kFit);
                too_long->train_dataloader();
              }),
              HasSubstr("has 19 tokens, the budget of a batch is max_tokens: 18"));
}

TEST(TokenText, GivesLinesWithTheirLengths) {
  const TemporaryFolder folder;
  const std::string tokenizer = folder.write("t.json", testing::small_tokenizer().dump());
  const std::string path = folder.write("text", "the\r\n\nabcdef\nto");
  auto data = make<TokenText>({.path = path,
                               .val_path = path,
                               .test_path = path,
                               .tokenizer = tokenizer,
                               .example = TextExample::kLine,
                               .length = 4,
                               .padding = 258,
                               .shuffle = false});
  data->setup(Stage::kFit);
  data->setup(Stage::kPredict);
  for (const auto& loader :
       {data->train_dataloader(), data->val_dataloader().at(0), data->predict_dataloader().at(0)}) {
    const auto batch = testing::all_batches(loader).at(0);
    EXPECT_TRUE(batch["text"].equal(
        torch::tensor({{257, 258, 258, 258}, {'a', 'b', 'c', 'd'}, {'t', 'o', 258, 258}}, torch::kLong)));
    EXPECT_TRUE(batch["length"].equal(torch::tensor({1, 4, 2}, torch::kLong)));
  }
}

TEST(TokenText, EveryMistakeIsOneMessage) {
  const TemporaryFolder folder;
  const std::string tokenizer = folder.write("t.json", testing::small_tokenizer().dump());
  const auto error = [&](const std::string& text, TextExample example) {
    const std::string path = folder.write("text", text);
    return message_of([&] {
      make<TokenText>({.path = path, .tokenizer = tokenizer, .example = example, .length = 4})->setup(Stage::kFit);
    });
  };
  EXPECT_THAT(error("abcd", TextExample::kBlock), HasSubstr("text has no block of 4 tokens and one more"));
  EXPECT_THAT(error("\n\n", TextExample::kLine), HasSubstr("text has no lines"));
  EXPECT_THAT(error("a\nb\n\xc3(", TextExample::kLine), HasSubstr("text:3: the text is not UTF-8 at byte 0"));
  EXPECT_THAT(message_of([&] { make<TokenText>({.path = "x"}); }), HasSubstr("data.tokenizer is not set"));
  EXPECT_THAT(message_of([&] { make<TokenText>({.tokenizer = "x"}); }), HasSubstr("data.path is not set"));
}

}  // namespace
}  // namespace levin::data
