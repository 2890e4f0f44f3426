// Tokenizers: the ids and texts of Hugging Face's `tokenizers` for the configurations of families of models, texts that
// come id by id, and one message for each file that is not as it should be.

#include <levin/core/data/tokens/decode_stream.h>
#include <levin/core/data/tokens/tokenizer.h>

#include "reader_checks.h"
#include "small_tokenizer.h"
#include "tests/support/tree.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_tokenizer;
using Json = nlohmann::json;
using Ids = std::vector<int64_t>;

/// A tokenizer as Llama 2's: characters, bytes for what it does not know, and U+2581 for spaces. Ids 3 to 258 are
/// bytes.
Json byte_fallback_tokenizer() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  int id = 259;
  for (const char* token : {"▁", "a", "b", "ab", "▁ab"}) vocab[token] = id++;
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const Json back = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  return {{"added_tokens", {{{"id", 2}, {"content", "</s>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, replace}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {back,
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"byte_fallback", true},
            {"fuse_unk", true},
            {"vocab", vocab},
            {"merges", {"a b", "▁ ab"}}}}};
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, const DecodeOptions& options) {
  DecodeStream stream(tokenizer, options);
  std::string text;
  for (const int64_t id : ids) text += stream.add(id);
  return text + stream.finish();
}

/// Of 18 kinds of tokenizers, on so many texts.
void expect_those_of_hugging_face(const char* count) {
  if (const auto missing = testing::missing_module("tokenizers"); !missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const auto result = testing::run_program(
      {testing::test_python(), testing::source_path("tests/data/make_tokenizers.py"), folder.path(), count});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto texts = Json::parse(testing::read_text(folder.path("texts.json"))).get<std::vector<std::string>>();
  int kinds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string path = entry.path();
    if (!path.ends_with(".answers.json")) continue;
    ++kinds;
    const std::string name = entry.path().stem().stem();
    const Tokenizer tokenizer(folder.path(name + ".json"));
    const Json answers = Json::parse(testing::read_text(path));
    for (size_t i = 0; i < texts.size(); ++i) {
      const Json& answer = answers.at("texts").at(i);
      EXPECT_EQ(tokenizer.encode(texts[i]), answer.at(0).get<Ids>()) << name << ": '" << texts[i] << "'";
      const Ids ids = tokenizer.encode(texts[i], {.add_special_tokens = true});
      EXPECT_EQ(ids, answer.at(1).get<Ids>()) << name << ": '" << texts[i] << "'";
      EXPECT_EQ(tokenizer.decode(ids), answer.at(2).get<std::string>()) << name << ": '" << texts[i] << "'";
      EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), answer.at(3).get<std::string>())
          << name << ": '" << texts[i] << "'";
      // Of bytes as tokens, some may be a character before others follow.
      if (!tokenizer.decode(ids).ends_with("\xef\xbf\xbd"))
        EXPECT_EQ(streamed(tokenizer, ids, {}), answer.at(2).get<std::string>()) << name << ": '" << texts[i] << "'";
    }
    for (const Json& sequence : answers.at("sequences")) {
      const auto ids = sequence.at(0).get<Ids>();
      EXPECT_EQ(tokenizer.decode(ids), sequence.at(1).get<std::string>()) << name << ": " << sequence.at(0);
      EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), sequence.at(2).get<std::string>())
          << name << ": " << sequence.at(0);
    }
  }
  EXPECT_EQ(kinds, 18);
}

TEST(Tokenizer, GivesTheIdsAndTextsOfHuggingFacesTokenizers) { expect_those_of_hugging_face("2000"); }
TEST(LongTokenizer, GivesTheIdsAndTextsOfHuggingFacesTokenizersOf10000Texts) { expect_those_of_hugging_face("10000"); }

TEST(Tokenizer, FallsBackToBytes) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(folder.write("t.json", byte_fallback_tokenizer().dump()));
  EXPECT_THAT(tokenizer.encode("ab  aé</s>b"), ElementsAre(263, 259, 259, 260, 3 + 0xc3, 3 + 0xa9, 2, 259, 261));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab  aé")), "ab  aé");
  EXPECT_EQ(tokenizer.decode({263, 2, 263}), "ab</s> ab");
  EXPECT_EQ(tokenizer.decode({263, 2, 263}, {.skip_special_tokens = true}), "ab ab");
  EXPECT_EQ(tokenizer.decode({260, 3 + 0xe2, 3 + 0x82}, {.skip_incomplete = true}), "a");
  EXPECT_EQ(tokenizer.decode({260, 3 + 0xff}, {.skip_incomplete = true}), "a\xef\xbf\xbd") << "begins no character";
  EXPECT_EQ(tokenizer.decode({3 + 0xc3, 260}),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(tokenizer.size(), 264);
  EXPECT_TRUE(tokenizer.is_special(2));
  EXPECT_FALSE(tokenizer.is_special(1)) << "no added token";
  EXPECT_FALSE(tokenizer.is_special(1000));
}

TEST(Tokenizer, IsSharedByThreads) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(folder.write("t.json", byte_fallback_tokenizer().dump()));
  std::string text;
  for (int i = 0; i < 500; ++i) text += fmt::format("ab {} ", i);
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (int& count : equal)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) count += tokenizer.encode(text) == expected ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ElementsAre(20, 20, 20, 20));
}

TEST(DecodeStream, GivesTextAsSoonAsItIsWhole) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(folder.write("t.json", byte_fallback_tokenizer().dump()));
  DecodeStream stream(tokenizer, {.skip_special_tokens = true});
  const auto add = [&](std::initializer_list<int64_t> ids) {
    std::vector<std::string> parts;
    for (const int64_t id : ids) parts.push_back(stream.add(id));
    return parts;
  };
  // The first space is that of the file's normalizer; those that follow are the text's, as is one alone.
  EXPECT_THAT(add({263, 259, 263, 2, 261}), ElementsAre("ab", " ", " ab", "", "b"));
  EXPECT_THAT(add({3 + 0xe2, 3 + 0x82, 3 + 0xac, 260}), ElementsAre("", "", "€", "a")) << "of three bytes";
  EXPECT_THAT(add({3 + 0xf0, 3 + 0x9f, 260}), ElementsAre("", "",
                                                          "\xef\xbf\xbd\xef\xbf\xbd"
                                                          "a"))
      << "is none";
  EXPECT_THAT(add({3 + 0xe2}), ElementsAre(""));
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_THAT(add({3 + 0xef, 3 + 0xbf, 3 + 0xbd, 3 + 0xf0, 3 + 0x9f, 3 + 0x98, 3 + 0x80}),
              ElementsAre("", "", "\xef\xbf\xbd", "", "", "", "😀"))
      << "U+FFFD of the text itself";
  EXPECT_THAT(add({260, 3 + 0xc3, 3 + 0xa9, 3 + 0xf0}), ElementsAre("a", "", "é", ""));
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_THAT(add({263}), ElementsAre("ab")) << "begins anew";
  EXPECT_EQ(stream.finish(), "");
  // Bytes that are no character go on: what is kept of them is bounded.
  std::string text;
  for (int i = 0; i < 1000; ++i) text += stream.add(3 + 0xff);
  text += stream.finish();
  EXPECT_EQ(text.size(), 3000U);

  const Tokenizer bytes(folder.write("bytes.json", small_tokenizer().dump()));
  DecodeStream of_bytes(bytes);
  std::vector<std::string> parts;
  for (const int64_t id : bytes.encode("é the<end>")) parts.push_back(of_bytes.add(id));
  EXPECT_THAT(parts, ElementsAre("", "é", " ", "the", "<end>"));
}

TEST(Tokenizer, RefusesWhatItWouldReadOtherwise) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& patch) {
    Json file = small_tokenizer();
    file.merge_patch(Json::parse(patch));
    const std::string path = folder.write("t.json", file.dump());
    return message_of([&] { Tokenizer tokenizer(path); });
  };
  EXPECT_EQ(error("{}"), "");
  EXPECT_THAT(
      error(R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA=="}})"),
      HasSubstr("t.json has the normalizer Precompiled, which is not supported; got {\"precompiled_charsmap\""));
  EXPECT_THAT(error(R"({"normalizer": {"type": "Nmt"}})"), HasSubstr("valid: NFC, NFD, NFKC, NFKD, Prepend, Replace"));
  EXPECT_THAT(error(R"({"model": {"type": "WordPiece"}})"),
              HasSubstr("has the model WordPiece of bytes, which is not"));
  EXPECT_THAT(error(R"({"decoder": {"type": "CTC"}})"), HasSubstr("the decoder CTC"));
  EXPECT_THAT(error(R"({"post_processor": {"type": "Other"}})"), HasSubstr("the post_processor Other"));
  EXPECT_THAT(error(R"({"model": {"dropout": 0.1}})"), HasSubstr("dropout"));
  EXPECT_THAT(error(R"({"model": {"continuing_subword_prefix": "##"}})"), HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(error(R"({"pre_tokenizer": {"type": "UnicodeScripts"}})"), HasSubstr("the pre_tokenizer UnicodeScripts"));
  const auto splits_by = [&](const std::string& expression) {
    const Json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", expression}}}};
    return error(
        Json{{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, {{"type", "ByteLevel"}}}}}}}.dump());
  };
  EXPECT_EQ(splits_by(R"([\]\[^-]+|[]a]|[[:alpha:]]|\u00e9|\p{L}&&b)"), "");
  EXPECT_THAT(splits_by("("), HasSubstr("is not understood at character 1"));
  EXPECT_THAT(splits_by("[a-z&&b]"), HasSubstr("has an intersection of classes, which is not supported"));
  EXPECT_THAT(splits_by(" ?[^(\\s|[.,])]+"), HasSubstr("has a class within a class"));
  EXPECT_THAT(splits_by("[\\W]"), HasSubstr("has a negated class within a class"));
  EXPECT_THAT(splits_by("\\bword"), HasSubstr("has a word boundary"));
  EXPECT_THAT(error(R"({"pre_tokenizer": {"type": "Split", "behavior": "Other", "pattern": {"String": "a"}}})"),
              HasSubstr("valid: Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext"));
  EXPECT_THAT(error(R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}})"), HasSubstr("one character"));
  EXPECT_THAT(error(R"({"post_processor": {"type": "TemplateProcessing", "special_tokens": {},
                        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}]}})"),
              HasSubstr("its template has '<s>', which is no token"));
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
    EXPECT_THAT(message_of([&] { Tokenizer tokenizer(path); }),
                HasSubstr("deep.json is damaged: its lists and objects lie too deep inside each other"))
        << key;
  }
  // A text that each of a row of replacements makes longer, and longer rows than any tokenizer has.
  const Json longer = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'a')}};
  Json file = small_tokenizer();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(10, longer)}};
  const Tokenizer growing(folder.write("growing.json", file.dump()));
  EXPECT_THAT(message_of([&] { (void)growing.encode("aaa"); }), HasSubstr("until it has more than 1048576 bytes"));
  file["normalizer"]["normalizers"] = std::vector<Json>(100, longer);
  EXPECT_THAT(message_of([&] { Tokenizer tokenizer(folder.write("many.json", file.dump())); }),
              HasSubstr("has more than 24 normalizers"));
  EXPECT_THAT(error(R"({"model": null})"), HasSubstr("is no tokenizer.json"));
  EXPECT_THAT(message_of([&] { Tokenizer tokenizer(folder.write("t.json", "{")); }), HasSubstr("is damaged"));
  EXPECT_THAT(message_of([&] { Tokenizer tokenizer(folder.path("none.json")); }), HasSubstr("none.json"));
  const Tokenizer tokenizer(folder.write("good.json", small_tokenizer().dump()));
  EXPECT_THAT(message_of([&] { (void)tokenizer.encode("good \xff"); }), HasSubstr("the text is not UTF-8 at byte 5"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.id("none"); }), HasSubstr("has no token 'none'"));
}

TEST(Tokenizer, DamagedFilesAreReadOrAreOneMessage) {
  const TemporaryFolder folder;
  const auto read = [](const std::string& path) { (void)Tokenizer(path).encode("the other"); };
  EXPECT_GT(testing::read_damaged(small_tokenizer().dump(), folder.path("t.json"), 150, read), 50);
  EXPECT_GT(testing::read_damaged(byte_fallback_tokenizer().dump(), folder.path("t.json"), 150, read), 50);
}

TEST(Tokenizer, RefusesDamagedUnigrams) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& model, const std::string& text) {
    Json file = small_tokenizer();
    file["pre_tokenizer"] = nullptr;
    file["model"] = Json::parse(model);
    const std::string path = folder.write("t.json", file.dump());
    return message_of([&] { (void)Tokenizer(path).encode(text); });
  };
  EXPECT_EQ(error(R"({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5]]})", "aéa"), "");
  EXPECT_EQ(error(R"({"type": "Unigram", "unk_id": null, "vocab": [["a", -1.5]]})", "aa"), "");
  EXPECT_THAT(error(R"({"type": "Unigram", "vocab": [["a", -1.5]]})", "aé"),
              HasSubstr("t.json has no token for 'é', and none for what is unknown"));
  EXPECT_THAT(error(R"({"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.5]]})", ""),
              HasSubstr("is damaged: unk_id is 7, of 1 tokens"));
  EXPECT_THAT(error(R"({"type": "Unigram", "vocab": [["a"]]})", ""), HasSubstr("is damaged"));
  EXPECT_THAT(error(R"({"type": "Unigram", "vocab": [[1, 2]]})", ""), HasSubstr("is damaged"));
}

}  // namespace
}  // namespace levin::data
