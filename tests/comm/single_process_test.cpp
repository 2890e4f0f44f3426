#include <levin/core/comm/single_process.h>

#include <levin/core/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace levin {
namespace {

void expect_error(const std::function<void()>& action, const std::string& message) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), message);
  }
}

TEST(SingleProcess, IsRankZeroOfOne) {
  const auto group = make_single_process_collective();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->world_size(), 1);
  group->barrier();
  group->abort("no one waits");
}

TEST(SingleProcess, LeavesTensorsAsTheyAre) {
  const auto group = make_single_process_collective();
  const at::Tensor tensor = at::arange(6);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax}) {
    const auto work = group->all_reduce(tensor, op);
    EXPECT_TRUE(work->is_completed());
    work->wait();
  }
  group->broadcast(tensor, 0)->wait();
  EXPECT_TRUE(at::equal(tensor, at::arange(6)));
}

TEST(SingleProcess, CopiesInputToOutput) {
  const auto group = make_single_process_collective();
  const at::Tensor input = at::arange(6).reshape({2, 3});
  at::Tensor gathered = at::zeros({6}, at::kLong);
  group->all_gather(gathered, input.t())->wait();
  EXPECT_TRUE(at::equal(gathered, input.t().reshape(-1)));
  at::Tensor scattered = at::zeros({3, 2}, at::kLong);
  group->reduce_scatter(scattered, input, ReduceOp::kMean)->wait();
  EXPECT_TRUE(at::equal(scattered.view(-1), at::arange(6)));
}

TEST(SingleProcess, GivesBackBytes) {
  const auto group = make_single_process_collective();
  EXPECT_EQ(group->broadcast_bytes(std::string("a\0b", 3), 0), std::string("a\0b", 3));
  EXPECT_EQ(group->gather_bytes("mine"), std::vector<std::string>{"mine"});
}

TEST(SingleProcess, HasSubgroupsOfOneAndOfNone) {
  const auto group = make_single_process_collective();
  EXPECT_EQ(group->subgroup({}), nullptr);
  const std::vector<int64_t> self{0};
  const auto subgroup = group->subgroup(self);
  ASSERT_NE(subgroup, nullptr);
  EXPECT_EQ(subgroup->world_size(), 1);
}

TEST(SingleProcess, RefusesOtherRanks) {
  const auto group = make_single_process_collective();
  const at::Tensor tensor = at::zeros({2});
  const std::vector<int64_t> both{0, 1};
  expect_error([&] { group->broadcast(tensor, 1); }, "[comm] broadcast names rank 1; valid: 0 in a group of one");
  expect_error([&] { group->broadcast_bytes("", 2); }, "[comm] broadcast names rank 2; valid: 0 in a group of one");
  expect_error([&] { group->subgroup(both); }, "[comm] subgroup names rank 1; valid: 0 in a group of one");
  expect_error([&] { group->send(tensor, 1, 0); }, "[comm] cannot send to rank 1 in a group of one");
  expect_error([&] { group->receive(tensor, 1, 0); }, "[comm] cannot receive from rank 1 in a group of one");
}

TEST(SingleProcess, RefusesAnOutputOfAnotherSize) {
  const auto group = make_single_process_collective();
  const std::string message = "[comm] output and input differ in size; got 3 and 2 elements in a group of one";
  expect_error([&] { group->all_gather(at::zeros({3}), at::zeros({2})); }, message);
  expect_error([&] { group->reduce_scatter(at::zeros({3}), at::zeros({2}), ReduceOp::kSum); }, message);
}

TEST(SingleProcess, KeepsAStoreOfItsOwn) {
  const auto group = make_single_process_collective();
  group->store().set("a", "1");
  EXPECT_EQ(group->store().clone()->get("a", std::chrono::milliseconds(0)), "1");
  EXPECT_FALSE(make_single_process_collective()->store().contains("a"));
}

}  // namespace
}  // namespace levin
