#include <levin/core/data/text_lines.h>

#include <levin/core/base/error.h>

#include "temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <numeric>

namespace levin::data {
namespace {

TEST(CharacterVocabulary, NumbersCharactersInOrder) {
  const CharacterVocabulary vocabulary("ba\ncab\r\n");
  EXPECT_EQ(vocabulary.size(), 5);
  std::array<int64_t, 4> ids{};
  EXPECT_EQ(vocabulary.encode("cabz", ids), 4);
  EXPECT_EQ(ids, (std::array<int64_t, 4>{4, 2, 3, CharacterVocabulary::kUnknown}));
  EXPECT_EQ(vocabulary.decode(ids), "cab\xEF\xBF\xBD");
  EXPECT_EQ(vocabulary.encode("aaaaaaaa", ids), 4);
}

TEST(CharacterVocabulary, KeepsLineEndsOnRequest) {
  const std::string text = "b\na\r\n";
  const CharacterVocabulary vocabulary(text, CharacterVocabulary::LineEnds::kKeep);
  EXPECT_EQ(vocabulary.size(), 6);
  std::array<int64_t, 5> ids{};
  EXPECT_EQ(vocabulary.encode(text, ids), 5);
  EXPECT_EQ(ids, (std::array<int64_t, 5>{5, 2, 4, 3, 2}));
  EXPECT_EQ(vocabulary.decode(ids), text);
}

TEST(CharacterVocabulary, ReadsUtf8) {
  const std::string text = "aé€😀";
  const CharacterVocabulary vocabulary(text);
  EXPECT_EQ(vocabulary.size(), 6);
  std::array<int64_t, 8> ids{};
  EXPECT_EQ(vocabulary.encode(text, ids), 4);
  EXPECT_EQ(ids, (std::array<int64_t, 8>{2, 3, 4, 5, 0, 0, 0, 0}));
  EXPECT_EQ(vocabulary.decode(ids), text);
}

TEST(CharacterVocabulary, TakesMalformedBytesOneByOne) {
  // A lone continuation byte, an overlong slash, a surrogate, a cut character at the end, and bytes that never occur.
  const std::string text =
      "\x80"
      "\xC0\xAF"
      "\xED\xA0\x80"
      "\xFF\xF8"
      "a\xE2\x82";
  const CharacterVocabulary vocabulary(text);
  EXPECT_EQ(vocabulary.size(), 4) << "a and U+FFFD";
  std::array<int64_t, 32> ids{};
  EXPECT_EQ(vocabulary.encode(text, ids), static_cast<int64_t>(text.size()));
}

TEST(TextLines, PadsAndCutsLines) {
  const TemporaryFolder folder;
  const TextLines dataset({.path = folder.write("text", "abc\n\nb\r\nabcabc"), .max_length = 4});
  ASSERT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.line(0), "abc");
  EXPECT_EQ(dataset.line(1), "b");
  EXPECT_EQ(dataset.line(2), "abcabc");
  Generator generator(0, 0);
  const std::vector<int64_t> rows{2, 1, 0};
  const Batch batch = dataset.get_batch(rows, generator);
  EXPECT_TRUE(batch["text"].equal(torch::tensor({{2, 3, 4, 2}, {3, 0, 0, 0}, {2, 3, 4, 0}}, torch::kLong)));
  EXPECT_TRUE(batch["length"].equal(torch::tensor({4, 1, 3}, torch::kLong)));
  const Batch example = dataset.get(0, generator);
  EXPECT_EQ(example["length"].item<int64_t>(), 3);
  EXPECT_THROW(dataset.line(3), Error);

  const TextLines other({.path = folder.write("other", "cz\n\n"), .max_length = 4, .skip_empty = false},
                        dataset.vocabulary());
  ASSERT_EQ(other.size(), 2);
  EXPECT_TRUE(other.get(0, generator)["text"].equal(torch::tensor({4, 1, 0, 0}, torch::kLong)));
}

TEST(TextLines, RefusesFilesItCannotUse) {
  const TemporaryFolder folder;
  EXPECT_THROW(TextLines({.path = folder.path("missing")}), Error);
  EXPECT_THROW(TextLines({.path = folder.path()}), Error);
  EXPECT_THROW(TextLines({.path = folder.write("empty", "")}), Error);
  EXPECT_THROW(TextLines({.path = folder.write("blank", "\n\n")}), Error);
  EXPECT_THROW(TextLines({.path = folder.write("text", "a"), .max_length = 0}), ConfigError);
}

}  // namespace
}  // namespace levin::data
