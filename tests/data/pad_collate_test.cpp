#include <levin/core/data/pad_collate.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

std::vector<std::string> names_of(const Batch& batch) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch.items()) names.push_back(name);
  return names;
}

Batch collated(const std::vector<Batch>& examples, const PadCollateOptions& options = {}) {
  return pad_collate(options)(examples);
}

TEST(PadCollate, PadsToTheLongestAndSaysWhatIsPadding) {
  const Batch batch = collated({{{"x", torch::tensor({1, 2, 3})}, {"label", torch::tensor(4)}},
                                {{"x", torch::tensor({5})}, {"label", torch::tensor(6)}},
                                {{"label", torch::tensor(7)}, {"x", torch::empty({0}, torch::kLong)}}});
  EXPECT_EQ(names_of(batch), (std::vector<std::string>{"x", "x_length", "x_mask", "label"}));
  EXPECT_TRUE(batch["x"].equal(torch::tensor({{1, 2, 3}, {5, 0, 0}, {0, 0, 0}})));
  EXPECT_TRUE(batch["x_length"].equal(torch::tensor({3, 1, 0}, torch::kLong)));
  EXPECT_TRUE(batch["x_mask"].equal(torch::tensor({{1, 1, 1}, {1, 0, 0}, {0, 0, 0}}).to(torch::kBool)));
  EXPECT_TRUE(batch["label"].equal(torch::tensor({4, 6, 7})));
}

TEST(PadCollate, EqualsPadSequence) {
  std::vector<Batch> examples;
  std::vector<torch::Tensor> frames;
  for (const int64_t length : {4, 1, 7, 7, 2}) {
    frames.push_back(torch::randn({5, length}).t());  // not contiguous
    examples.push_back({{"frames", frames.back()}});
  }
  const Batch batch = collated(examples, {.padding_value = {{"frames", -1.5}}});
  EXPECT_TRUE(batch["frames"].equal(torch::nn::utils::rnn::pad_sequence(frames, true, -1.5)));
  const Batch wide = collated(examples, {.multiple_of = 4, .padding_value = {{"frames", -1.5}}});
  EXPECT_EQ(wide["frames"].sizes(), (torch::IntArrayRef{5, 8, 5}));
  EXPECT_EQ(wide["frames_mask"].sizes(), (torch::IntArrayRef{5, 8}));
  EXPECT_TRUE(wide["frames"].slice(1, 0, 7).equal(batch["frames"]));
  EXPECT_TRUE(wide["frames"].slice(1, 7).eq(-1.5).all().item<bool>());
}

TEST(PadCollate, PadsNamedTensorsAlone) {
  const std::vector<Batch> examples{{{"x", torch::ones({2})}, {"point", torch::ones({3})}},
                                    {{"x", torch::ones({1})}, {"point", torch::ones({3})}}};
  const Batch batch = collated(examples, {.fields = {"x"}});
  EXPECT_EQ(names_of(batch), (std::vector<std::string>{"x", "x_length", "x_mask", "point"}));
  EXPECT_EQ(batch["point"].sizes(), (torch::IntArrayRef{2, 3}));
  EXPECT_EQ(collated(examples)["point_length"].sum().item<int64_t>(), 6);
}

TEST(PadCollate, KeepsTexts) {
  const auto example = [](int64_t length, const std::string& file, const std::string& speaker) {
    Batch made{{"x", torch::ones({length})}, {"label", torch::tensor(length)}};
    made.set_texts("file", {file});
    made.set_texts("part.speaker", {speaker});
    return made;
  };
  const Batch batch = collated({example(2, "a.wav", "Ann"), example(1, "b.wav", "Bob")});
  EXPECT_EQ(names_of(batch), (std::vector<std::string>{"x", "x_length", "x_mask", "label"}));
  EXPECT_EQ(batch.texts("file"), (std::vector<std::string>{"a.wav", "b.wav"}));
  EXPECT_EQ(batch.part("part").texts("speaker"), (std::vector<std::string>{"Ann", "Bob"}));
  EXPECT_EQ(batch.text_items().size(), 2U);
  // Beside padded tensors alone, and with nothing to pad.
  std::vector<Batch> padded_only{{{"x", torch::ones({2})}}, {{"x", torch::ones({1})}}};
  std::vector<Batch> texts_only(2);
  for (size_t i = 0; i < 2; ++i) {
    padded_only[i].set_texts("file", {std::to_string(i)});
    texts_only[i].set_texts("file", {std::to_string(i)});
  }
  EXPECT_EQ(collated(padded_only).texts("file"), (std::vector<std::string>{"0", "1"}));
  EXPECT_EQ(collated(padded_only)["x_length"].sum().item<int64_t>(), 3);
  EXPECT_EQ(collated(texts_only).texts("file"), (std::vector<std::string>{"0", "1"}));
}

TEST(PadCollate, OneMessageForEachMistake) {
  const auto message = [](const std::vector<Batch>& examples, const PadCollateOptions& options = {}) {
    return message_of([&] { collated(examples, options); });
  };
  EXPECT_THAT(message({{{"x", torch::ones({2, 3})}}, {{"x", torch::ones({2, 4})}}}),
              HasSubstr("'x' is [2, 3] Float in example 0 and [2, 4] Float in example 1"));
  EXPECT_THAT(message({{{"x", torch::ones({2})}}, {{"x", torch::ones({2}, torch::kLong)}}}), HasSubstr("[2] Long"));
  EXPECT_THAT(message({{{"x", torch::ones({2})}}, {{"y", torch::ones({2})}}}), HasSubstr("no tensor 'x'"));
  EXPECT_THAT(message({{{"x", torch::ones({2})}}, {{"x", torch::ones({2})}, {"y", torch::ones({2})}}}),
              HasSubstr("example 1 has a tensor 'y', which example 0 lacks"));
  Batch with_text{{"x", torch::ones({2})}};
  with_text.set_texts("file", {"a"});
  EXPECT_THAT(message({with_text, {{"x", torch::ones({2})}}}), HasSubstr("example 1 has 0"));
  EXPECT_THAT(message({{{"x", torch::ones({2})}}, with_text}), HasSubstr("example 1 has 1"));
  EXPECT_THAT(message({{{"x", torch::ones({2})}, {"x_mask", torch::ones({1, 1, 1})}}}), HasSubstr("adds the tensor"));
  EXPECT_THAT(message({{{"x", torch::ones({2})}}}, {.fields = {"y"}}), HasSubstr("no tensor 'y'; it has: x"));
  EXPECT_THAT(message({{{"x", torch::ones({2, 2, 2})}}}, {.fields = {"x"}}),
              HasSubstr("'x' of an example cannot be padded; got [2, 2, 2] Float; valid: [length] or"));
  EXPECT_THAT(message_of([] { pad_collate({.multiple_of = 0}); }), HasSubstr("multiple of 0; valid: at least 1"));
  EXPECT_THAT(message_of([] {
                pad_collate({.fields = {"x"}, .padding_value = {{"X", 1}}});
              }),
              HasSubstr("a padding value for 'X', which it does not pad"));
}

}  // namespace
}  // namespace levin::data
