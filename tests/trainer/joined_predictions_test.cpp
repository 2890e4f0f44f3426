#include <levin/core/data/joined_predictions.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

namespace levin {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

Tensors joined(const std::vector<Batch>& batches) {
  const JoinedPredictions result = join_predictions(batches);
  EXPECT_TRUE(result.notes.empty()) << result.notes.front();
  return {result.tensors.begin(), result.tensors.end()};
}

/// 1, 2, ... in that shape.
at::Tensor counting(at::IntArrayRef sizes) { return at::arange(1, 1 + c10::multiply_integers(sizes)).reshape(sizes); }

TEST(JoinedPredictions, RowsOfBatchesOfOneWidthFollowEachOther) {
  const auto whole = counting({10, 3});
  const Tensors tensors =
      joined({{{"x", whole.slice(0, 0, 4)}}, {{"x", whole.slice(0, 4, 8)}}, {{"x", whole.slice(0, 8)}}});
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_TRUE(tensors.at("x").equal(whole));
}

TEST(JoinedPredictions, WidthsThatDifferArePaddedWithTheirLengths) {
  const auto narrow = counting({2, 3});
  const auto wide = counting({1, 5});
  const Tensors tensors = joined({{{"x", narrow}}, {{"x", wide}}});
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors.at("x").sizes(), at::IntArrayRef({3, 5}));
  EXPECT_TRUE(tensors.at("x.lengths").equal(at::tensor({3, 3, 5}, at::kLong)));
  EXPECT_TRUE(tensors.at("x").slice(0, 0, 2).slice(1, 0, 3).equal(narrow));
  EXPECT_TRUE(tensors.at("x").slice(0, 2).equal(wide));
  EXPECT_EQ(tensors.at("x").slice(0, 0, 2).slice(1, 3).count_nonzero().item<int64_t>(), 0);
}

TEST(JoinedPredictions, OneDimensionThatDiffersHasOneLengthARow) {
  const Tensors tensors = joined({{{"x", counting({2, 3, 4})}}, {{"x", counting({2, 6, 4})}}});
  EXPECT_EQ(tensors.at("x").sizes(), at::IntArrayRef({4, 6, 4}));
  EXPECT_TRUE(tensors.at("x.lengths").equal(at::tensor({3, 3, 6, 6}, at::kLong)));
}

TEST(JoinedPredictions, SeveralDimensionsThatDifferHaveTheSizesOfEachRow) {
  const auto first = counting({2, 3, 4, 2});
  const auto second = counting({1, 5, 1, 2});
  const Tensors tensors = joined({{{"x", first}}, {{"x", second}}});
  EXPECT_EQ(tensors.at("x").sizes(), at::IntArrayRef({3, 5, 4, 2}));
  EXPECT_TRUE(tensors.at("x.lengths").equal(at::tensor({3, 4, 2, 3, 4, 2, 5, 1, 2}, at::kLong).reshape({3, 3})));
  EXPECT_TRUE(tensors.at("x")[2].slice(0, 0, 5).slice(1, 0, 1).equal(second[0]));
}

TEST(JoinedPredictions, ANumberABatchIsKept) {
  const Tensors tensors = joined({{{"loss", at::scalar_tensor(0.5)}, {"x", counting({3})}},
                                  {{"loss", at::scalar_tensor(0.25)}, {"x", counting({3})}},
                                  {{"loss", at::scalar_tensor(2.0)}, {"x", counting({1})}}});
  EXPECT_TRUE(tensors.at("loss").equal(at::tensor({0.5F, 0.25F, 2.0F})));
  EXPECT_EQ(tensors.at("x").size(0), 7);
  EXPECT_EQ(tensors.size(), 2U);
}

// What `squeeze()` leaves of a last batch of one.
TEST(JoinedPredictions, ANumberInABatchOfOneIsItsRow) {
  const Tensors tensors = joined({{{"x", counting({3})}}, {{"x", counting({4})[3]}}});
  EXPECT_TRUE(tensors.at("x").equal(counting({4})));
  EXPECT_EQ(tensors.size(), 1U);
}

TEST(JoinedPredictions, RowsThatAreNotTheBatchsAreCounted) {
  const Tensors tensors = joined({{{"boxes", counting({5, 4})}, {"x", counting({2})}},
                                  {{"boxes", at::empty({0, 4}, at::kLong)}, {"x", counting({2})}},
                                  {{"boxes", counting({7, 4})}, {"x", counting({1})}}});
  EXPECT_EQ(tensors.at("boxes").sizes(), at::IntArrayRef({12, 4}));
  EXPECT_TRUE(tensors.at("boxes.rows").equal(at::tensor({5, 0, 7}, at::kLong)));
  EXPECT_EQ(tensors.count("x.rows"), 0U);
}

TEST(JoinedPredictions, NothingFoundMayHaveAnyShape) {
  const Tensors tensors = joined({{{"boxes", at::empty({0})}}, {{"boxes", counting({2, 4})}}});
  EXPECT_TRUE(tensors.at("boxes").equal(counting({2, 4})));
  EXPECT_TRUE(tensors.at("boxes.rows").equal(at::tensor({0, 2}, at::kLong)));
  EXPECT_EQ(joined({{{"boxes", at::empty({0, 4})}}}).at("boxes").sizes(), at::IntArrayRef({0, 4}));
}

TEST(JoinedPredictions, AFieldThatABatchLacksHasNoRowsThere) {
  const Tensors tensors = joined({{{"x", counting({2})}}, {}, {{"x", counting({2})}, {"rare", counting({2, 1})}}});
  EXPECT_TRUE(tensors.at("x.rows").equal(at::tensor({2, 0, 2}, at::kLong)));
  EXPECT_TRUE(tensors.at("rare").equal(counting({2, 1})));
  EXPECT_TRUE(tensors.at("rare.rows").equal(at::tensor({0, 0, 2}, at::kLong)));
}

TEST(JoinedPredictions, TypesBecomeTheOneThatHoldsAllExactly) {
  const Tensors tensors = joined({{{"x", counting({2}).to(at::kHalf)}, {"n", counting({2}).to(at::kInt)}},
                                  {{"x", counting({2}).to(at::kDouble)}, {"n", counting({2})}}});
  EXPECT_EQ(tensors.at("x").scalar_type(), at::kDouble);
  EXPECT_EQ(tensors.at("n").scalar_type(), at::kLong);
}

TEST(JoinedPredictions, WhatFitsIntoNoTensorIsKeptBatchByBatch) {
  const auto large = at::full({2}, (int64_t{1} << 53) + 1, at::kLong);
  const JoinedPredictions result =
      join_predictions({{{"types", at::ones({2})}, {"x", counting({2})}, {"dims", counting({2, 3})}},
                        {{"types", large}, {"x", counting({2})}, {"dims", counting({2})}}});
  const Tensors tensors(result.tensors.begin(), result.tensors.end());
  EXPECT_TRUE(tensors.at("types.batch_0").equal(at::ones({2})));
  EXPECT_TRUE(tensors.at("types.batch_1").equal(large));
  EXPECT_TRUE(tensors.at("dims.batch_0").equal(counting({2, 3})));
  EXPECT_TRUE(tensors.at("dims.batch_1").equal(counting({2})));
  EXPECT_EQ(tensors.at("x").size(0), 4);
  EXPECT_EQ(tensors.size(), 5U);
  ASSERT_EQ(result.notes.size(), 2U);
  EXPECT_EQ(result.notes[0],
            "'types' does not fit into one tensor and is saved batch by batch, as 'types.batch_0' and so on: got [2] "
            "Float in batch 0 and [2] Long in batch 1");
  EXPECT_NE(result.notes[1].find("got [2, 3] Long in batch 0 and [2] Long in batch 1"), std::string::npos);
}

TEST(JoinedPredictions, NamesOfFieldsStayTheirs) {
  const auto own = counting({3, 1});
  const Tensors tensors = joined({{{"x", counting({2, 3})}, {"x.lengths", own.slice(0, 0, 2)}},
                                  {{"x", counting({1, 4})}, {"x.lengths", own.slice(0, 2)}}});
  EXPECT_TRUE(tensors.at("x.lengths").equal(own));
  EXPECT_TRUE(tensors.at("x.lengths_").equal(at::tensor({3, 3, 4}, at::kLong)));
}

TEST(JoinedPredictions, NothingGivesNothing) {
  EXPECT_TRUE(join_predictions({}).tensors.empty());
  EXPECT_TRUE(join_predictions({{}, {}}).tensors.empty());
}

TEST(JoinedPredictions, OnlySlicesOfOneBatchAreOne) {
  const Batch batch{{"x", counting({2, 3})}};
  EXPECT_TRUE(are_slices_of_one_batch({batch, {{"x", counting({1, 3})}}}));
  EXPECT_FALSE(are_slices_of_one_batch({batch, {{"x", counting({1, 4})}}}));
  EXPECT_FALSE(are_slices_of_one_batch({batch, {{"x", counting({1, 3}).to(at::kInt)}}}));
  EXPECT_FALSE(are_slices_of_one_batch({batch, {{"y", counting({1, 3})}}}));
  EXPECT_FALSE(are_slices_of_one_batch({batch, {}}));
  EXPECT_FALSE(are_slices_of_one_batch({{{"x", at::scalar_tensor(1.0)}}, {{"x", at::scalar_tensor(2.0)}}}));
}

}  // namespace
}  // namespace levin
