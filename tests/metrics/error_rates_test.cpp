#include <levin/core/metrics/error_rates.h>

#include "metric_oracle.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin::metrics {
namespace {

using Texts = std::vector<std::string>;

// The texts of tests/oracles/metrics.py.
const Texts kWritten = {"this is the prediction",
                        "there is an other sample",
                        "",
                        "größe  in Zürich",
                        "日本語 の文",
                        "a much longer line than it should be"};
const Texts kMeant = {"this is the reference", "there is another one", "left out",
                      "Größe in\tZürich",      "日本 語の文章",        "a line"};

/// Whole, in uneven batches, and merged as of two ranks.
template <class M>
void expect_edit_rate(const std::string& name) {
  SCOPED_TRACE(name);
  expect_oracle(M().update(kWritten, kMeant).compute(), name);
  M first;
  M second;
  first.update({kWritten.begin(), kWritten.begin() + 4}, {kMeant.begin(), kMeant.begin() + 4});
  second.update({kWritten[4]}, {kMeant[4]});
  second.update({kWritten[5]}, {kMeant[5]});
  first.merge_from(second);
  expect_oracle(first.compute(), name);
}

TEST(ErrorRates, EqualTorchmetrics) {
  expect_edit_rate<WordErrorRate>("wer");
  expect_edit_rate<CharacterErrorRate>("cer");
}

TEST(ErrorRates, KnownDistances) {
  EXPECT_EQ(CharacterErrorRate().update({"kitten"}, {"sitting"}).compute().item<double>(), 3.0 / 7);
  EXPECT_EQ(CharacterErrorRate().update({"é"}, {"e"}).compute().item<double>(), 1) << "a character of two bytes is one";
  EXPECT_EQ(WordErrorRate().update({" a  b\n"}, {"a b"}).compute().item<double>(), 0) << "spaces only separate";
}

/// What Python's str.split separates at, and what it does not: a zero width space, a byte that begins as a space does.
TEST(ErrorRates, WordsEndAtUnicodeWhiteSpace) {
  const auto edits = [](const std::string& text) {
    return WordErrorRate().update({text}, {"a b"}).compute().item<double>();
  };
  for (const std::string space : {"\t", "\v", "\x1c", "\x1f", "\u0085", "\u00a0", "\u1680", "\u2000", "\u200a",
                                  "\u2028", "\u202f", "\u205f", "\u3000", "\u3000 \u00a0"}) {
    SCOPED_TRACE(::testing::PrintToString(space));
    EXPECT_EQ(edits("a" + space + "b"), 0);
    EXPECT_EQ(edits(space + "a" + space + "b" + space), 0);
  }
  for (const std::string character : {"\u200b", "\u00a1", "\u2010", "\u3001", "\xe3\x80", "\x1b"})
    EXPECT_EQ(edits("a" + character + "b"), 1) << ::testing::PrintToString(character);
}

TEST(ErrorRates, NothingToBeRight) {
  EXPECT_TRUE(all_nan(WordErrorRate().compute()));
  EXPECT_TRUE(all_nan(WordErrorRate().update({""}, {" "}).compute()));
  EXPECT_TRUE(CharacterErrorRate().update({"a"}, {""}).compute().isinf().item<bool>());
}

TEST(ErrorRates, EachPredictionNeedsItsTarget) {
  WordErrorRate metric;
  expect_error(
      [&] {
        metric.update({"a", "b"}, {"a"});
      },
      {"[metrics] WordErrorRate", "got 2 predictions and 1 targets"});
  EXPECT_TRUE(all_nan(metric.compute()));
}

}  // namespace
}  // namespace levin::metrics
