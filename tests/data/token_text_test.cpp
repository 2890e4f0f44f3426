// Byte-pair tokens: the ids of Hugging Face's `tokenizers`, texts as blocks and lines, and one message for each
// mistake.

#include <levin/core/data/token_text.h>

#include "reader_checks.h"
#include "tests/support/tree.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using Json = nlohmann::json;

/// A tokenizer of bytes with two merges, "th" and "the", and a special token: ids are 0 to 255 in the order of bytes.
Json small_tokenizer() {
  Json vocab = Json::object();
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const uint32_t point = is_visible ? byte : next++;
    std::string character(1, static_cast<char>(point));
    if (point >= 0x80) character = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
    vocab[character] = byte;
  }
  vocab["th"] = 256;
  vocab["the"] = 257;
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 258}, {"content", "<end>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e"}}}}};
}

TEST(BytePairTokenizer, GivesTheIdsOfHuggingFacesTokenizers) {
  if (const auto missing = testing::missing_module("tokenizers"); !missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const auto result = testing::run_program(
      {testing::test_python(), testing::source_path("tests/data/make_tokenizers.py"), folder.path()});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto texts = Json::parse(testing::read_text(folder.path("texts.json"))).get<std::vector<std::string>>();
  for (const char* name : {"gpt2", "spaced", "llama", "whole"}) {
    const BytePairTokenizer tokenizer(folder.path(std::string(name) + ".json"));
    const Json expected = Json::parse(testing::read_text(folder.path(std::string(name) + ".ids.json")));
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto ids = tokenizer.encode(texts[i]);
      EXPECT_EQ(ids, expected[i].get<std::vector<int32_t>>()) << name << ": '" << texts[i] << "'";
      if (std::string(name) != "spaced") EXPECT_EQ(tokenizer.decode(ids), texts[i]) << name;
    }
    EXPECT_EQ(tokenizer.id("<|endoftext|>"), 0);
    EXPECT_EQ(tokenizer.size(), 602);
  }
}

TEST(BytePairTokenizer, RefusesWhatItWouldReadOtherwise) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& patch) {
    Json file = small_tokenizer();
    file.merge_patch(Json::parse(patch));
    const std::string path = folder.write("t.json", file.dump());
    return message_of([&] { BytePairTokenizer tokenizer(path); });
  };
  EXPECT_EQ(error("{}"), "");
  EXPECT_THAT(
      error(R"({"normalizer": {"type": "NFC"}})"),
      HasSubstr("t.json has a normalizer, which is not supported; got {\"type\":\"NFC\"}; valid: byte-level BPE"));
  EXPECT_THAT(error(R"({"model": {"type": "WordPiece"}})"), HasSubstr("another model"));
  EXPECT_THAT(error(R"({"model": {"byte_fallback": true}})"), HasSubstr("byte_fallback"));
  EXPECT_THAT(error(R"({"model": {"dropout": 0.1}})"), HasSubstr("dropout"));
  EXPECT_THAT(error(R"({"model": {"continuing_subword_prefix": "##"}})"), HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(error(R"({"pre_tokenizer": {"type": "Whitespace"}})"), HasSubstr("another pre_tokenizer"));
  EXPECT_THAT(error(R"({"pre_tokenizer": null})"), HasSubstr("another pre_tokenizer"));
  EXPECT_THAT(error(R"({"padding": {"length": 5}})"), HasSubstr("padding"));
  EXPECT_THAT(error(R"({"model": {"vocab": {"a": null}}})"), HasSubstr("has no token for the byte 97"));
  EXPECT_THAT(error(R"({"model": {"merges": ["q u"]}})"), HasSubstr("a merge has 'qu', which is no token"));
  for (const char* id : {"1e300", "0.5", "-1", "4294967297", "18446744073709551615"}) {
    EXPECT_THAT(error(fmt::format(R"({{"model": {{"vocab": {{"a": {}}}}}}})", id)), HasSubstr("is damaged")) << id;
    EXPECT_THAT(error(fmt::format(R"({{"added_tokens": [{{"content": "x", "id": {}}}]}})", id)),
                HasSubstr("is damaged"))
        << id;
  }
  // Such as nlohmann::json prints and copies by recursion.
  for (const char* key : {"normalizer", "truncation", "padding", "pre_tokenizer", "model", "added_tokens"}) {
    std::string text = small_tokenizer().dump();
    text.pop_back();
    text += fmt::format(", \"{}\": {}{}}}", key, std::string(200'000, '['), std::string(200'000, ']'));
    const std::string path = folder.write("deep.json", text);
    EXPECT_THAT(message_of([&] { BytePairTokenizer tokenizer(path); }),
                HasSubstr("deep.json is damaged: its lists and objects lie too deep inside each other"))
        << key;
  }
  EXPECT_THAT(error(R"({"model": null})"), HasSubstr("is no tokenizer.json"));
  EXPECT_THAT(message_of([&] { BytePairTokenizer tokenizer(folder.write("t.json", "{")); }), HasSubstr("is damaged"));
  EXPECT_THAT(message_of([&] { BytePairTokenizer tokenizer(folder.path("none.json")); }), HasSubstr("none.json"));
  const BytePairTokenizer tokenizer(folder.write("good.json", small_tokenizer().dump()));
  EXPECT_THAT(message_of([&] { (void)tokenizer.encode("good \xff"); }), HasSubstr("the text is not UTF-8 at byte"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.id("none"); }), HasSubstr("has no token 'none'"));
}

TEST(BytePairTokenizer, DamagedFilesAreReadOrAreOneMessage) {
  const TemporaryFolder folder;
  const auto read = [](const std::string& path) { (void)BytePairTokenizer(path).encode("the other"); };
  EXPECT_GT(testing::read_damaged(small_tokenizer().dump(), folder.path("t.json"), 150, read), 50);
}

TEST(TokenText, GivesBlocksAndTheTokensThatFollow) {
  const TemporaryFolder folder;
  const std::string tokenizer = folder.write("t.json", small_tokenizer().dump());
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
  config.set("tokenizer", Config::scalar(folder.write("t.json", small_tokenizer().dump()), true));
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
  const std::string tokenizer = folder.write("t.json", small_tokenizer().dump());
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
  const std::string tokenizer = folder.write("t.json", small_tokenizer().dump());
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
