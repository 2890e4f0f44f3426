#include <levin/callbacks/pruning_masks.h>

#include "pruning_formula.h"

#include <levin/core/base/error.h>

#include <ATen/ATen.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using testing::pruning_formula;

PruningMasks two_layers() {
  PruningMasks masks;
  masks.bind({{"conv.weight", pruning_formula({5, 3, 2, 2}, 0)}, {"linear.weight", pruning_formula({6, 7}, 1)}});
  return masks;
}

std::string text_of(const PruningMasks& masks) {
  std::string text;
  for (const auto& parameter : masks.parameters()) {
    const at::Tensor flat = (parameter.kept == 0).flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) text += flat[i].item<bool>() ? '1' : '0';
  }
  return text;
}

TEST(PruningMasksTest, AreThoseOfPyTorchPrunedThreeTimes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::map<std::string, PruningMasks::Rule> rules = {
      {"global_0.5", {.global = true, .of_rest = true, .amount = 0.5}},
      {"global_0.17", {.global = true, .of_rest = true, .amount = 0.17}},
      {"local_0.5", {.of_rest = true, .amount = 0.5}},
      {"local_0.25", {.of_rest = true, .amount = 0.25}},
      {"slices_0_2_0.5", {.slices = true, .of_rest = true, .amount = 0.5}},
      {"slices_0_1_0.3", {.slices = true, .norm = 1, .of_rest = true, .amount = 0.3}},
      {"slices_1_inf_0.4", {.slices = true, .dim = 1, .norm = kInfinity, .of_rest = true, .amount = 0.4}},
      {"slices_-1_2_0.5", {.slices = true, .dim = -1, .of_rest = true, .amount = 0.5}},
  };
  const std::map<std::string, std::array<std::string, 3>> oracles = {
#include "../oracles/pruning_masks.inc"
  };
  ASSERT_EQ(oracles.size(), rules.size());
  for (const auto& [name, expected] : oracles) {
    PruningMasks masks = two_layers();
    for (size_t round = 0; round < expected.size(); ++round) {
      masks.prune(rules.at(name));
      masks.apply();
      EXPECT_EQ(text_of(masks), expected[round]) << name << ", pruning " << round;
    }
  }
}

TEST(PruningMasksTest, AShareOfAllIsReachedFromWhereverPruningIs) {
  PruningMasks masks = two_layers();
  const auto pruned_at = [&](double amount) {
    masks.prune({.global = true, .amount = amount});
    const auto counts = masks.count();
    return counts[0] + counts[1];
  };
  EXPECT_EQ(pruned_at(0.25), 26) << "25.5 of 102, rounded to even";
  EXPECT_EQ(pruned_at(0.2), 26) << "what is pruned stays so";
  EXPECT_EQ(pruned_at(0.5), 51);
}

TEST(PruningMasksTest, RandomOnesFollowFromTheSeed) {
  const auto drawn = [](uint64_t seed, bool slices) {
    PruningMasks masks = two_layers();
    masks.prune({.random = true, .slices = slices, .amount = 0.5, .seed = seed});
    masks.apply();
    const auto counts = masks.count();
    EXPECT_EQ(counts, (slices ? std::vector<int64_t>{24, 21} : std::vector<int64_t>{30, 21}));
    return text_of(masks);
  };
  for (const bool slices : {false, true}) {
    EXPECT_EQ(drawn(1, slices), drawn(1, slices));
    EXPECT_NE(drawn(1, slices), drawn(2, slices));
  }
}

TEST(PruningMasksTest, WorkInEveryFormatAndOrderOfMemory) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    PruningMasks masks;
    const at::Tensor weight =
        (pruning_formula({4, 4, 3, 3}, 0) * 300).to(type).contiguous(at::MemoryFormat::ChannelsLast);
    masks.bind({{"weight", weight}});
    masks.prune({.slices = true, .amount = 0.5});
    masks.apply();
    EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast)) << type;
    EXPECT_EQ((weight == 0).flatten(1).all(1).sum().item<int64_t>(), 2) << type;
    EXPECT_TRUE(at::isfinite(weight).all().item<bool>()) << type;
  }
}

TEST(PruningMasksTest, OfOtherParametersAreRefused) {
  PruningMasks masks = two_layers();
  masks.prune({.global = true, .amount = 0.5});
  const State saved = masks.state_dict();
  const auto refusal = [&](std::vector<std::pair<std::string, at::Tensor>> parameters) -> std::string {
    PruningMasks others;
    others.load(saved);
    try {
      others.bind(std::move(parameters));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const at::Tensor conv = pruning_formula({5, 3, 2, 2}, 0);
  EXPECT_THAT(refusal({{"conv.weight", conv}}), ::testing::HasSubstr("have 'linear.weight', which is not pruned now"));
  EXPECT_THAT(refusal({{"conv.weight", conv}, {"head.weight", conv}}), ::testing::HasSubstr("lack 'head.weight'"));
  EXPECT_THAT(refusal({{"conv.weight", conv}, {"linear.weight", conv}}), ::testing::HasSubstr("linear.weight"));
  EXPECT_EQ(refusal({{"conv.weight", conv}, {"linear.weight", pruning_formula({6, 7}, 1)}}), "no error");
}

}  // namespace
}  // namespace levin
