#include <levin/core/metrics/text_scores.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin::metrics {
namespace {

using Texts = std::vector<std::string>;
using References = std::vector<Texts>;

/// Those of tests/oracles/metrics.py.
const Texts kWritten = {"the cat is on the mat", "there is a big tree, near the park here!",
                        "größe in Zürich (sehr) klein", "A fast brown fox-trot; jumped over 2 dogs", "yes"};
const References kMeant = {{"there is a cat on the mat", "a cat is on the mat"},
                           {"a big tree is growing near the park here", "there is a big tree, in the park."},
                           {"Größe in Zürich (sehr) groß"},
                           {"a quick brown fox jumped over two dogs", "The fox-trot, over 2 dogs"},
                           {"yes"}};

/// Whole, in uneven batches, merged as of three ranks of which one has no data, and loaded.
void expect_everywhere(const std::string& name, const std::function<std::unique_ptr<TextScoreMetric>()>& make) {
  SCOPED_TRACE(name);
  const auto whole = make();
  EXPECT_TRUE(all_nan(whole->compute()));
  expect_oracle(whole->update(kWritten, kMeant).compute(), name);
  const auto first = make();
  const auto second = make();
  const auto merged = make();
  first->update({kWritten[0]}, References{kMeant[0]});
  second->update({kWritten[1], kWritten[2], kWritten[3]}, {kMeant[1], kMeant[2], kMeant[3]});
  second->update(Texts{}, References{});
  second->update({kWritten[4]}, References{kMeant[4]});
  merged->merge_from(*second);
  merged->merge_from(*first);
  expect_oracle(merged->compute(), name);
  const auto loaded = make();
  loaded->load_state_dict(merged->state_dict());
  EXPECT_TRUE(at::equal(loaded->compute(), merged->compute()));
  loaded->reset();
  EXPECT_TRUE(all_nan(loaded->compute()));
}

template <class T>
auto maker(const typename T::Options& options) {
  return [options]() -> std::unique_ptr<TextScoreMetric> { return std::make_unique<T>(options); };
}

TEST(TextScores, EqualTorchmetrics) {
  for (const int64_t n_gram : {1, 2, 4})
    for (const bool smooth : {false, true})
      expect_everywhere(fmt::format("bleu/{}/{}", n_gram, smooth ? 1 : 0),
                        maker<Bleu>({.n_gram = n_gram, .smooth = smooth}));
  expect_everywhere("chrf", maker<Chrf>({}));
  expect_everywhere("chrf/options", maker<Chrf>({.n_char_order = 4, .n_word_order = 0, .beta = 1, .whitespace = true}));
  for (const std::string value : {"fmeasure", "precision", "recall"})
    expect_everywhere("rouge_l/" + value, maker<RougeL>({.value = value}));
}

template <class T>
double score(const std::string& written, const std::string& meant) {
  return T().update(Texts{written}, Texts{meant}).compute().template item<double>();
}

TEST(TextScores, KnowTheCornerCases) {
  EXPECT_EQ(score<Bleu>("one two three four five", "one two three four five"), 1);
  EXPECT_EQ(score<Bleu>("one two three", "one two three"), 0) << "no sequence of four words";
  EXPECT_EQ(score<Bleu>("", "one two"), 0);
  EXPECT_TRUE(std::isnan(score<Bleu>("", "")));
  EXPECT_EQ(score<Chrf>("one two three", "one two three"), 1);
  EXPECT_EQ(score<Chrf>("abc", "xyz"), 0);
  EXPECT_EQ(score<Chrf>("", ""), 0);
  EXPECT_EQ(score<RougeL>("One, two.", "one TWO!"), 1);
  EXPECT_EQ(score<RougeL>("", "one"), 0);
  EXPECT_EQ(score<RougeL>("?", "!"), 0);
  EXPECT_DOUBLE_EQ(score<RougeL>("a x b y c", "a b c"), 2 * 0.6 / 1.6);
}

TEST(TextScores, WhatDoesNotMatchLowersTheRecallOfAll) {
  Chrf chrf({.n_char_order = 1, .n_word_order = 0, .beta = 1});
  chrf.update(Texts{"ab", "cc"}, Texts{"ab", "xy"});
  EXPECT_DOUBLE_EQ(chrf.compute().item<double>(), 0.5);
}

TEST(TextScores, NameWhatIsWrong) {
  expect_error([] { Bleu().update(Texts{"a"}, Texts{"a", "b"}); }, {"Bleu: each prediction needs its target", "got 1"});
  expect_error([] { Chrf().update(Texts{"a"}, References{{}}); }, {"Chrf: prediction 0 has no reference"});
  expect_error([] { RougeL({.value = "f1"}); }, {"RougeL.value"});
  expect_error([] { Bleu({.n_gram = 0}); }, {"Bleu.n_gram"});
}

}  // namespace
}  // namespace levin::metrics
