#include <levin/strategies/comm/c10d_collective.h>

#include <levin/core/comm/communication_error.h>
#include <levin/core/comm/gather_on_first.h>
#include <levin/core/metrics/collector.h>
#include <levin/strategies/comm/shared_memory_team.h>
#include <levin/strategies/ddp/gradient_reducer.h>
#include <tests/strategies/run_ranks.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace levin {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::message_of;
using testing::RankKind;
using testing::run_ranks;

struct RanksOf {
  std::string backend;
  RankKind kind;
  int64_t count;
  /// Shared memory between threads in a way of its own, which needs an object that they share.
  std::shared_ptr<SharedMemoryTeam> make_team() const {
    return backend == "shared_memory" && kind == RankKind::kThreads ? make_thread_team(count) : nullptr;
  }
};

std::shared_ptr<C10dCollective> join_group(int64_t rank, int64_t count, const c10::intrusive_ptr<c10d::Store>& store,
                                           milliseconds timeout = seconds(60), RankStatus* rank_status = nullptr,
                                           const std::string& backend = "gloo",
                                           std::shared_ptr<SharedMemoryTeam> team = nullptr) {
  const ProcessGroupOptions options{
      .backend = backend, .rank = rank, .world_size = count, .timeout = timeout, .thread_team = std::move(team)};
  return std::make_shared<C10dCollective>(make_process_group(store, options), store, options, rank_status);
}

/// Rank r's input: other values on every rank, some negative where the type has them.
at::Tensor input_of(int64_t rank, at::ScalarType type) {
  at::Tensor values = at::arange(12, at::kLong) * (rank + 1) % 7 + rank;
  if (type != at::kByte) values = values - 4;
  return values.to(type).view({3, 4});
}

at::Tensor reduced(int64_t count, at::ScalarType type, ReduceOp op) {
  at::Tensor result = input_of(0, type).to(at::isIntegralType(type, false) ? at::kLong : at::kDouble);
  for (int64_t rank = 1; rank < count; ++rank) {
    const at::Tensor next = input_of(rank, type).to(result.scalar_type());
    if (op == ReduceOp::kMin)
      result = result.minimum(next);
    else if (op == ReduceOp::kMax)
      result = result.maximum(next);
    else
      result = result + next;
  }
  if (op == ReduceOp::kMean)
    result = at::isIntegralType(type, false) ? result.div(count, "trunc") : result / static_cast<double>(count);
  return result.to(type);
}

class C10dCollectiveTest : public ::testing::TestWithParam<RanksOf> {
 protected:
  int64_t count() const { return GetParam().count; }
  void on_ranks(const std::function<void(C10dCollective&)>& body) {
    const auto team = GetParam().make_team();
    run_ranks(GetParam().kind, count(), [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
      body(*join_group(rank, count(), store, seconds(60), nullptr, GetParam().backend, team));
    });
  }
};

TEST_P(C10dCollectiveTest, AllReduceAgreesWithSerialReference) {
  on_ranks([&](C10dCollective& group) {
    EXPECT_EQ(group.world_size(), count());
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte}) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax}) {
        at::Tensor tensor = input_of(group.rank(), type);
        group.all_reduce(tensor, op)->wait();
        const at::Tensor expected = reduced(count(), type, op);
        // A third has no exact value; the other results have.
        const double bound = op == ReduceOp::kMean ? (type == at::kHalf || type == at::kBFloat16 ? 8e-3 : 1e-6) : 0;
        EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), expected.to(at::kDouble), bound, 0))
            << c10::toString(type) << " op " << static_cast<int>(op) << "\n"
            << tensor << "\n"
            << expected;
      }
    }
  });
}

TEST_P(C10dCollectiveTest, MeansOfFloat16DoNotOverflow) {
  on_ranks([&](C10dCollective& group) {
    // Of two ranks the sum is 120000, and float16 ends at 65504.
    at::Tensor tensor = at::full({5}, 60000, at::kHalf);
    group.all_reduce(tensor, ReduceOp::kMean)->wait();
    EXPECT_TRUE(at::allclose(tensor.to(at::kFloat), at::full({5}, 60000.0F), 2e-3, 0)) << tensor;
    const at::Tensor input = at::full({2 * count()}, -60000, at::kHalf);
    const at::Tensor part = at::empty({2}, at::kHalf);
    group.reduce_scatter(part, input, ReduceOp::kMean)->wait();
    EXPECT_TRUE(at::allclose(part.to(at::kFloat), at::full({2}, -60000.0F), 2e-3, 0)) << part;
    EXPECT_TRUE(input.eq(-60000).all().item<bool>());
  });
}

TEST_P(C10dCollectiveTest, AllReduceTakesEveryKindOfTensor) {
  on_ranks([&](C10dCollective& group) {
    const double ranks = static_cast<double>(count());
    // Not contiguous: the rest of the storage stays as it was.
    at::Tensor whole = at::ones({4, 6});
    group.all_reduce(whole.slice(1, 0, 6, 2), ReduceOp::kSum)->wait();
    EXPECT_TRUE(whole.slice(1, 0, 6, 2).eq(ranks).all().item<bool>());
    EXPECT_TRUE(whole.slice(1, 1, 6, 2).eq(1).all().item<bool>());
    // Integers beyond what a double holds.
    const int64_t large = (int64_t{1} << 53) + 1;
    at::Tensor integers = at::full({3}, large, at::kLong);
    group.all_reduce(integers, ReduceOp::kMean)->wait();
    EXPECT_TRUE(integers.eq(large).all().item<bool>());
    // Truth values: any and all.
    at::Tensor any = at::full({2}, group.rank() == 0, at::kBool);
    at::Tensor all = any.clone();
    group.all_reduce(any, ReduceOp::kMax)->wait();
    group.all_reduce(all, ReduceOp::kMin)->wait();
    EXPECT_TRUE(any.all().item<bool>());
    EXPECT_EQ(all.any().item<bool>(), count() == 1);
    // Complex numbers, a leaf that requires a gradient, a scalar, nothing.
    at::Tensor complex = at::full({2}, c10::complex<double>(1, -2), at::kComplexDouble);
    group.all_reduce(complex, ReduceOp::kMean)->wait();
    EXPECT_TRUE(complex.eq(at::full({2}, c10::complex<double>(1, -2), at::kComplexDouble)).all().item<bool>());
    // A view that conjugates takes and keeps the values that it shows.
    at::Tensor stored = at::full({2}, c10::complex<double>(1, static_cast<double>(group.rank())), at::kComplexDouble);
    at::Tensor conjugated = stored.conj();
    ASSERT_TRUE(conjugated.is_conj());
    group.broadcast(conjugated, count() - 1)->wait();
    const c10::complex<double> shown(1, 1 - static_cast<double>(count()));
    EXPECT_TRUE(conjugated.eq(at::full({2}, shown, at::kComplexDouble)).all().item<bool>()) << stored;
    at::Tensor leaf = at::ones({5}).set_requires_grad(true);
    group.all_reduce(leaf, ReduceOp::kMean)->wait();
    EXPECT_TRUE(leaf.eq(1).all().item<bool>());
    EXPECT_TRUE(leaf.is_leaf());
    at::Tensor scalar = at::full({}, 2.0);
    group.all_reduce(scalar, ReduceOp::kSum)->wait();
    EXPECT_EQ(scalar.item<double>(), 2 * ranks);
    group.all_reduce(at::empty({0}), ReduceOp::kSum)->wait();

    EXPECT_NE(message_of([&] { group.all_reduce(complex, ReduceOp::kMax); }).find("have no order"), std::string::npos);
    EXPECT_NE(message_of([&] { group.all_reduce(any, ReduceOp::kSum); }).find("kMax (any)"), std::string::npos);
  });
}

TEST_P(C10dCollectiveTest, SeveralUnderWayAtOnce) {
  on_ranks([&](C10dCollective& group) {
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
    for (int64_t i = 0; i < 20; ++i) {
      tensors.push_back(at::full({1000}, static_cast<double>(group.rank() + i), at::kDouble));
      works.push_back(group.all_reduce(tensors.back(), ReduceOp::kSum));
    }
    // A work keeps its tensors alive, and one that nobody waits for is not cancelled.
    group.all_reduce(at::ones({100'000}), ReduceOp::kSum).reset();
    for (int64_t i = 19; i >= 0; --i) {
      works[static_cast<size_t>(i)]->wait();
      EXPECT_TRUE(works[static_cast<size_t>(i)]->is_completed());
      works[static_cast<size_t>(i)]->wait();
      const double expected = static_cast<double>(count() * (count() - 1) / 2 + count() * i);
      EXPECT_TRUE(tensors[static_cast<size_t>(i)].eq(expected).all().item<bool>());
    }
    group.barrier();
  });
}

TEST_P(C10dCollectiveTest, BroadcastFromEveryRoot) {
  on_ranks([&](C10dCollective& group) {
    for (int64_t root = 0; root < count(); ++root) {
      for (const auto type : {at::kFloat, at::kShort, at::kBool, at::kComplexFloat, at::kBFloat16}) {
        at::Tensor tensor = input_of(group.rank(), type);
        group.broadcast(tensor, root)->wait();
        EXPECT_TRUE(tensor.equal(input_of(root, type))) << c10::toString(type);
      }
      // The same numbers in another order of memory.
      at::Tensor transposed = input_of(group.rank(), at::kFloat).t().contiguous().t();
      ASSERT_FALSE(transposed.is_contiguous());
      group.broadcast(transposed, root)->wait();
      EXPECT_TRUE(transposed.equal(input_of(root, at::kFloat)));
    }
    group.broadcast(at::empty({0, 3}), 0)->wait();
    const std::string message = message_of([&] { group.broadcast(at::ones({1}), count()); });
    EXPECT_NE(message.find(fmt::format("names the root rank {}; valid: 0 to {}", count(), count() - 1)),
              std::string::npos)
        << message;
  });
}

TEST_P(C10dCollectiveTest, AllGatherIsInRankOrder) {
  on_ranks([&](C10dCollective& group) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kBool, at::kLong}) {
      at::Tensor output = at::empty({count() * 3, 4}, type);
      group.all_gather(output, input_of(group.rank(), type))->wait();
      for (int64_t rank = 0; rank < count(); ++rank)
        EXPECT_TRUE(output.narrow(0, rank * 3, 3).equal(input_of(rank, type)));
    }
    at::Tensor strided = at::zeros({count(), 2}).slice(1, 0, 2, 2);
    group.all_gather(strided, at::full({1}, static_cast<double>(group.rank())))->wait();
    EXPECT_TRUE(strided.view(-1).equal(at::arange(count(), at::kFloat)));
    const std::string message = message_of([&] { group.all_gather(at::empty({count() * 2 + 1}), at::ones({2})); });
    EXPECT_NE(message.find("the output must hold"), std::string::npos) << message;
  });
}

TEST_P(C10dCollectiveTest, ReduceScatterGivesEveryRankItsPart) {
  on_ranks([&](C10dCollective& group) {
    for (const auto type : {at::kFloat, at::kDouble, at::kLong}) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
        // Part p of rank r's input is input_of(r) + p.
        std::vector<at::Tensor> parts;
        for (int64_t part = 0; part < count(); ++part) parts.push_back(input_of(group.rank(), type) + part);
        at::Tensor output = at::empty({3, 4}, type);
        group.reduce_scatter(output, at::cat(parts), op)->wait();
        const int64_t factor = op == ReduceOp::kSum ? count() : 1;
        at::Tensor expected = reduced(count(), type, op) + group.rank() * factor;
        if (op == ReduceOp::kMean && type == at::kLong)
          expected = (reduced(count(), type, ReduceOp::kSum) + group.rank() * count()).div(count(), "trunc");
        EXPECT_TRUE(at::allclose(output.to(at::kDouble), expected.to(at::kDouble), 1e-6, 1e-6))
            << c10::toString(type) << output << expected;
      }
    }
    // In place, and two at a time.
    at::Tensor whole = at::full({count() * 2}, static_cast<double>(group.rank()));
    auto own = whole.narrow(0, group.rank() * 2, 2);
    auto first = group.reduce_scatter(own, whole, ReduceOp::kSum);
    at::Tensor other = at::empty({1});
    auto second = group.reduce_scatter(other, at::ones({count()}), ReduceOp::kSum);
    second->wait();
    first->wait();
    EXPECT_TRUE(own.eq(static_cast<double>(count() * (count() - 1) / 2)).all().item<bool>());
    EXPECT_EQ(other.item<double>(), static_cast<double>(count()));
    group.barrier();
  });
}

TEST_P(C10dCollectiveTest, BytesOfAnyLength) {
  on_ranks([&](C10dCollective& group) {
    const auto bytes_of = [](int64_t rank, size_t size) {
      std::string bytes(size, '\0');
      for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank) * 31);
      return bytes;
    };
    for (const size_t size : {size_t{0}, size_t{1}, size_t{1'000'000}}) {
      for (int64_t root = 0; root < count(); ++root)
        EXPECT_TRUE(group.broadcast_bytes(group.rank() == root ? bytes_of(root, size) : "ignored", root) ==
                    bytes_of(root, size));
      // Another length on every rank, from none on rank 0.
      const auto gathered = group.gather_bytes(bytes_of(group.rank(), size * static_cast<size_t>(group.rank())));
      ASSERT_EQ(static_cast<int64_t>(gathered.size()), count());
      for (int64_t rank = 0; rank < count(); ++rank)
        EXPECT_TRUE(gathered[static_cast<size_t>(rank)] == bytes_of(rank, size * static_cast<size_t>(rank)));
    }
  });
}

TEST_P(C10dCollectiveTest, SendAndReceiveMatchByTag) {
  on_ranks([&](C10dCollective& group) {
    const int64_t next = (group.rank() + 1) % count();
    const int64_t previous = (group.rank() + count() - 1) % count();
    if (count() == 1) {
      EXPECT_NE(message_of([&] { group.send(at::ones({1}), 0, 0); }).find("cannot send to itself"), std::string::npos);
      EXPECT_NE(message_of([&] { group.receive(at::ones({1}), 0, 0); }).find("from itself"), std::string::npos);
      return;
    }
    // Received in the opposite order, into memory that is not contiguous.
    auto first = group.send(at::full({2, 3}, group.rank() * 10 + 1, at::kShort), next, 1);
    auto second = group.send(at::full({2, 3}, group.rank() * 10 + 2, at::kShort), next, 2);
    at::Tensor with_tag_2 = at::zeros({2, 6}, at::kShort).slice(1, 0, 6, 2);
    at::Tensor with_tag_1 = at::zeros({2, 3}, at::kShort);
    group.receive(with_tag_2, previous, 2)->wait();
    group.receive(with_tag_1, previous, 1)->wait();
    first->wait();
    second->wait();
    EXPECT_TRUE(first->is_completed());
    EXPECT_TRUE(with_tag_1.eq(previous * 10 + 1).all().item<bool>());
    EXPECT_TRUE(with_tag_2.eq(previous * 10 + 2).all().item<bool>());
    EXPECT_NE(message_of([&] { group.send(with_tag_1, next, -1); }).find("got the tag -1"), std::string::npos);
    // A send that nobody waits for arrives.
    group.send(at::full({50'000}, static_cast<double>(group.rank())), next, 3).reset();
    at::Tensor large = at::empty({50'000});
    group.receive(large, previous, 3)->wait();
    EXPECT_TRUE(large.eq(static_cast<double>(previous)).all().item<bool>());
    group.barrier();
  });
}

TEST_P(C10dCollectiveTest, SubgroupsAreGroupsOfTheirOwn) {
  on_ranks([&](C10dCollective& group) {
    // One a rank: groups of one, made one after the other.
    for (int64_t rank = 0; rank < count(); ++rank) {
      const auto alone = group.subgroup(std::vector<int64_t>{rank});
      ASSERT_EQ(alone != nullptr, rank == group.rank());
      if (!alone) continue;
      at::Tensor tensor = at::full({1}, 5.0);
      alone->all_reduce(tensor, ReduceOp::kSum)->wait();
      EXPECT_EQ(tensor.item<double>(), 5.0);
      EXPECT_EQ(alone->gather_bytes("x"), std::vector<std::string>{"x"});
    }
    EXPECT_EQ(group.subgroup(std::vector<int64_t>{}), nullptr);
    // All of them, in the opposite order, and in it a group of its first.
    std::vector<int64_t> reversed;
    for (int64_t rank = count() - 1; rank >= 0; --rank) reversed.push_back(rank);
    const auto backwards = group.subgroup(reversed);
    EXPECT_EQ(backwards->rank(), count() - 1 - group.rank());
    EXPECT_EQ(backwards->broadcast_bytes(std::to_string(group.rank()), 0), std::to_string(count() - 1));
    const auto nested = backwards->subgroup(std::vector<int64_t>{0});
    EXPECT_EQ(nested != nullptr, group.rank() == count() - 1);
    // Groups that overlap, used at the same time as the whole group.
    const std::vector<int64_t> ends = {0, count() - 1};
    if (count() > 1) {
      const auto outer = group.subgroup(ends);
      at::Tensor of_outer = at::ones({1});
      at::Tensor of_all = at::ones({1});
      auto all_work = group.all_reduce(of_all, ReduceOp::kSum);
      if (outer) outer->all_reduce(of_outer, ReduceOp::kSum)->wait();
      all_work->wait();
      EXPECT_EQ(of_outer.item<double>(), outer ? 2 : 1);
      EXPECT_EQ(of_all.item<double>(), static_cast<double>(count()));
    } else {
      EXPECT_NE(message_of([&] { group.subgroup(ends); }).find("names a rank twice"), std::string::npos);
    }
    const std::vector<int64_t> outside = {0, count()};
    EXPECT_NE(message_of([&] { group.subgroup(outside); }).find("names the member rank"), std::string::npos);
    group.store().add("done", 1);
    group.barrier();
    EXPECT_EQ(group.store().add("done", 0), count());
  });
}

std::vector<RanksOf> ranks_over(const std::string& backend) {
  std::vector<RanksOf> all;
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses})
    for (const int64_t count : {1, 2, 3}) all.push_back({backend, kind, count});
  return all;
}

std::string name_of(const ::testing::TestParamInfo<RanksOf>& info) {
  return fmt::format("{}{}", info.param.count, info.param.kind == RankKind::kThreads ? "Threads" : "Processes");
}

INSTANTIATE_TEST_SUITE_P(Gloo, C10dCollectiveTest, ::testing::ValuesIn(ranks_over("gloo")), name_of);
INSTANTIATE_TEST_SUITE_P(SharedMemory, C10dCollectiveTest, ::testing::ValuesIn(ranks_over("shared_memory")), name_of);

TEST(C10dCollectiveFailureTest, AbortEndsWhatIsUnderWay) {
  run_ranks(RankKind::kThreads, 2, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    RankStatus rank_status;
    const auto group = join_group(rank, 2, store, seconds(60), &rank_status);
    const std::vector<int64_t> both = {0, 1};
    const auto inner = group->subgroup(both);
    group->barrier();
    if (rank == 1) {
      // Comes to no collective, but keeps its connections until rank 0 has given up.
      group->store().get("rank 0 is through", seconds(60));
      return;
    }
    at::Tensor tensor = at::ones({4});
    auto pending = group->all_reduce(tensor, ReduceOp::kSum);
    auto receiving = group->receive(at::empty({2}), 1, 5);
    const auto future = group->process_group()->getBackend(at::kCPU)->barrier()->getFuture();
    std::thread other([&] {
      while (rank_status.collective.load() == nullptr) std::this_thread::yield();
      EXPECT_STREQ(rank_status.collective.load(), "barrier");
      group->abort("rank 1 failed: out of cheese");
    });
    const std::string message = message_of([&] { inner->barrier(); });
    other.join();
    EXPECT_EQ(message, "[comm] barrier ended on rank 0 of 2: rank 1 failed: out of cheese");
    EXPECT_EQ(rank_status.collective.load(), nullptr);
    EXPECT_EQ(message_of([&] { pending->wait(); }),
              "[comm] all_reduce ended on rank 0 of 2: rank 1 failed: out of cheese");
    EXPECT_EQ(message_of([&] { receiving->wait(); }),
              "[comm] receive ended on rank 0 of 2: rank 1 failed: out of cheese");
    // What c10d's Reducer waits for.
    future->wait();
    EXPECT_TRUE(future->hasError());
    EXPECT_NE(message_of([&] { group->all_reduce(tensor, ReduceOp::kSum); }).find("out of cheese"), std::string::npos);
    EXPECT_NE(message_of([&] { inner->gather_bytes("x"); }).find("out of cheese"), std::string::npos);
    EXPECT_NE(message_of([&] { group->subgroup(both); }).find("out of cheese"), std::string::npos);
    group->store().set("rank 0 is through", "");
  });
}

TEST(C10dCollectiveOfMany, BytesGoToRankZeroAlongATree) {
  constexpr int64_t kCount = kFewRanks + 3;
  for (const std::string backend : {"gloo", "shared_memory"}) {
    for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
      const auto team = RanksOf{backend, kind, kCount}.make_team();
      run_ranks(kind, kCount, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
        const auto group = join_group(rank, kCount, store, seconds(60), nullptr, backend, team);
        for (const size_t size : {size_t{0}, size_t{3}, size_t{100'000}}) {
          const auto text_of = [&](int64_t of) { return std::string(size * static_cast<size_t>(of), 'a'); };
          const auto all = gather_bytes_on_first(*group, text_of(rank));
          ASSERT_EQ(std::ssize(all), rank == 0 ? kCount : 0);
          for (size_t of = 0; of < all.size(); ++of) EXPECT_TRUE(all[of] == text_of(static_cast<int64_t>(of))) << of;
        }
        metrics::Collector collector;
        collector.begin({.batch_size = rank + 1});
        collector.log("rank", static_cast<double>(rank), {.reduce = LogReduce::kSum, .sync_dist = true});
        collector.synchronize_epoch(*group);
        collector.visit_epoch([&](const auto& value) { EXPECT_EQ(value.value, kCount * (kCount - 1) / 2); });
        group->barrier();
      });
    }
  }
}

TEST(C10dCollectiveFailureTest, AbortEndsAWaitingRankOverEveryBackend) {
  for (const std::string backend : {"gloo", "shared_memory"}) {
    for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
      const auto team = RanksOf{backend, kind, 2}.make_team();
      run_ranks(kind, 2, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
        RankStatus rank_status;
        const auto group = join_group(rank, 2, store, seconds(60), &rank_status, backend, team);
        group->barrier();
        if (rank == 1) {
          store->wait({"rank 0 is through"}, seconds(60));
          return;
        }
        std::thread other([&] {
          while (rank_status.collective.load() == nullptr) std::this_thread::yield();
          group->abort("somebody pulled the plug");
        });
        const std::string message = message_of([&] { group->all_reduce(at::ones({4}), ReduceOp::kSum)->wait(); });
        other.join();
        EXPECT_EQ(message, "[comm] all_reduce ended on rank 0 of 2: somebody pulled the plug");
        store->set("rank 0 is through", std::string("yes"));
      });
    }
  }
}

TEST(C10dCollectiveFailureTest, TimeOutSaysWhatAndWhere) {
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
    run_ranks(kind, 2, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
      const auto group = join_group(rank, 2, store, seconds(60));
      group->barrier();
      group->process_group()->setTimeout(milliseconds(300));
      if (rank == 1) {
        group->store().get("rank 0 is through", seconds(60));
        return;
      }
      const std::string message = message_of([&] { group->all_reduce(at::ones({4}), ReduceOp::kSum)->wait(); });
      EXPECT_TRUE(message.starts_with("[comm] all_reduce timed out on rank 0 of 2 after")) << message;
      EXPECT_NE(message.find("hint: another rank did not come to this collective"), std::string::npos) << message;
      EXPECT_EQ(message.find("Exception raised from"), std::string::npos) << message;
      EXPECT_EQ(message.find(".cc:"), std::string::npos) << message;
      group->store().set("rank 0 is through", "");
    });
  }
}

TEST(C10dCollectiveFailureTest, PeerThatEndsIsNoticed) {
  run_ranks(RankKind::kProcesses, 2, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto group = join_group(rank, 2, store, seconds(60));
    if (rank == 1) {
      group->store().get("connected", seconds(60));
      ::_exit(0);
    }
    group->store().set("connected", "");
    const std::string message = message_of([&] { group->all_reduce(at::ones({4}), ReduceOp::kSum)->wait(); });
    EXPECT_TRUE(message.starts_with("[comm] all_reduce failed on rank 0 of 2: ")) << message;
    EXPECT_EQ(message.find("Exception raised from"), std::string::npos) << message;
  });
}

TEST(C10dCollectiveFailureTest, PeerThatEndsBetweenMessagesIsNoticed) {
  run_ranks(RankKind::kProcesses, 2, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto group = join_group(rank, 2, store, seconds(60));
    if (rank == 1) {
      group->receive(at::zeros({4}), 0, 0)->wait();
      ::_exit(0);
    }
    const std::string message = message_of([&] {
      while (true) group->send(at::ones({4}), 1, 0)->wait();
    });
    EXPECT_TRUE(message.starts_with("[comm] send failed on rank 0 of 2: ")) << message;
  });
}

/// Runs `attempt` on the first of two ranks, while the second one comes to nothing, over every backend.
void run_in_vain(const std::function<void(const std::string& backend, C10dCollective& group)>& attempt) {
  for (const std::string backend : {"gloo", "shared_memory"}) {
    const auto team = RanksOf{backend, RankKind::kThreads, 2}.make_team();
    run_ranks(RankKind::kThreads, 2, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
      const auto group = join_group(rank, 2, store, seconds(60), nullptr, backend, team);
      group->barrier();
      if (rank == 1) {
        store->wait({"rank 0 is through"}, seconds(60));
        return;
      }
      attempt(backend, *group);
      store->set("rank 0 is through", std::string("yes"));
    });
  }
}

TEST(C10dCollectiveFailureTest, FailedCollectiveIsACommunicationError) {
  run_in_vain([](const std::string& backend, C10dCollective& group) {
    group.process_group()->setTimeout(milliseconds(300));
    EXPECT_THROW(group.all_reduce(at::ones({4}), ReduceOp::kSum)->wait(), CommunicationError) << backend;
    group.abort("enough");
    EXPECT_THROW(group.receive(at::empty({2}), 1, 5)->wait(), CommunicationError) << backend;
    EXPECT_THROW(group.store().get("nobody sets this", milliseconds(50)), CommunicationError) << backend;
  });
}

TEST(C10dCollectiveFailureTest, WrongArgumentsAreNoCommunicationError) {
  run_in_vain([](const std::string& backend, C10dCollective& group) {
    try {
      group.send(at::ones({2}), group.rank(), 0);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommunicationError&) {
      ADD_FAILURE() << backend;
    } catch (const Error&) {
    }
  });
}

/// Neither autograd nor c10d's Reducer change the type of what the backend throws.
TEST(C10dCollectiveFailureTest, FailureKeepsItsTypeThroughBackward) {
  for (const bool aborted : {false, true}) {
    run_in_vain([aborted](const std::string& backend, C10dCollective& group) {
      const at::Tensor weight = at::ones({4}).requires_grad_();
      GradientReducer reducer({{"weight", weight}}, group.process_group(), {});
      reducer.before_forward();
      const at::Tensor loss = reducer.before_backward(weight.sum(), {.sync = true}, {});
      group.process_group()->setTimeout(milliseconds(300));
      if (aborted) group.abort("enough");
      if (backend == "gloo")
        EXPECT_THROW(loss.backward(), c10::DistError);
      else
        EXPECT_THROW(loss.backward(), CommunicationError);
    });
  }
}

TEST(C10dCollectiveFailureTest, GroupThatIsStuckDoesNotDelayItsEnd) {
  run_ranks(RankKind::kThreads, 2, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    auto group = join_group(rank, 2, store, minutes(10));
    group->barrier();
    C10dCollective* raw = group.get();
    if (rank == 0) {
      auto pending = group->all_reduce(at::ones({4}), ReduceOp::kSum);
      raw->abort("enough");
      const auto began = std::chrono::steady_clock::now();
      pending.reset();
      group.reset();
      EXPECT_LT(std::chrono::steady_clock::now() - began, minutes(4)) << "it waits for the time-out";
      store->set("rank 0 is through", std::string("yes"));
    } else {
      store->wait({"rank 0 is through"}, minutes(11));
    }
  });
}

}  // namespace
}  // namespace levin
