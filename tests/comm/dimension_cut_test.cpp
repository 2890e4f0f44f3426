#include <levin/core/comm/dimension_cut.h>

#include "tests/support/thread_collective.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace levin {
namespace {

using testing::ThreadCollective;

TEST(DimensionCut, PartsOfAnyShapeAreTheirSharesAndMakeTheWhole) {
  std::mt19937 random(4);
  const auto draw = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t ranks = draw(1, 4);
    const int64_t pieces = draw(1, 3);
    const int64_t share = draw(1, 3);
    std::vector<int64_t> shape;
    for (int64_t dims = draw(1, 3); dims > 0; --dims) shape.push_back(draw(1, 4));
    const int64_t dim = draw(0, std::ssize(shape) - 1);
    shape[static_cast<size_t>(dim)] = ranks * pieces * share;
    const at::Tensor whole = at::randn(shape);
    std::vector<std::thread> threads;
    for (const auto& group : ThreadCollective::make_group(ranks))
      threads.emplace_back([&, group] {
        const DimensionCut cut(group, dim, pieces);
        const at::Tensor part = cut.part_of(whole);
        // Piece by piece: the rank's share of each.
        std::vector<at::Tensor> shares;
        for (const at::Tensor& piece : whole.chunk(pieces, dim))
          shares.push_back(piece.narrow(dim, group->rank() * share, share));
        EXPECT_TRUE(at::equal(part, at::cat(shares, dim)));
        EXPECT_TRUE(part.is_contiguous());
        EXPECT_FALSE(part.is_alias_of(whole));
        EXPECT_EQ(cut.whole_shape(part.sizes()), shape);
        EXPECT_TRUE(at::equal(cut.whole_of(part), whole));
      });
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace levin
