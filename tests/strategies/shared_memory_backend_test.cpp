#include <levin/strategies/comm/shared_memory_backend.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include "../support/eventually.h"
#include "launcher_support.h"
#include "team_runner.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <limits>
#include <ostream>
#include <random>
#include <tuple>

namespace levin {
namespace {

using team_testing::kPatience;
using team_testing::message_of;
using team_testing::RankKind;
using team_testing::RankUnderTest;
using team_testing::require;
using team_testing::run_processes;
using team_testing::run_ranks;
using team_testing::run_threads;
using team_testing::TemporaryFolder;
using RedOpType = c10d::ReduceOp::RedOpType;
using Tensors = std::vector<at::Tensor>;

/// Nothing, inline in a slot, one piece of the staging area, several pieces.
const std::vector<int64_t> kSizes = {0, 1, 3, 1023, 1025, 40007, 200003};

/// The same on every rank for the same arguments, so that each can compute what it should get.
at::Tensor values_of(int64_t rank, int64_t count, at::ScalarType type, int64_t seed = 0) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank + 100 * seed + 1));
  if (type == at::kBool) return at::randint(0, 2, {count}, generator, at::kLong).to(at::kBool);
  if (at::isIntegralType(type, false)) return at::randint(0, 50, {count}, generator, at::kLong).to(type);
  return at::randn({count}, generator, at::kFloat).to(type);
}

at::Tensor combined(const Tensors& parts, RedOpType op) {
  const at::ScalarType type = parts[0].scalar_type();
  const bool narrow = type == at::kHalf || type == at::kBFloat16;
  const auto wide = [&](const at::Tensor& part) { return narrow ? part.to(at::kFloat) : part; };
  at::Tensor result = wide(parts[0]).clone();
  for (size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor part = wide(parts[i]);
    if (op == RedOpType::MIN)
      result = type == at::kBool ? result.logical_and(part) : at::minimum(result, part);
    else if (op == RedOpType::MAX || type == at::kBool)
      result = type == at::kBool ? result.logical_or(part) : at::maximum(result, part);
    else
      result = result + part;
  }
  if (op == RedOpType::AVG)
    result = at::isIntegralType(type, false) ? result.div(static_cast<int64_t>(parts.size()), "trunc").to(type)
                                             : result / static_cast<double>(parts.size());
  return result.to(type);
}

at::Tensor expected_reduction(int64_t ranks, int64_t count, at::ScalarType type, RedOpType op, int64_t seed = 0) {
  Tensors parts;
  for (int64_t rank = 0; rank < ranks; ++rank) parts.push_back(values_of(rank, count, type, seed));
  return combined(parts, op);
}

c10d::AllreduceOptions reducing_by(RedOpType op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return options;
}

void all_reduce(RankUnderTest& self, at::Tensor tensor, RedOpType op = RedOpType::SUM) {
  Tensors tensors{tensor};
  self.backend->allreduce(tensors, reducing_by(op))->wait();
}

/// The team still works.
void require_working(RankUnderTest& self) {
  const at::Tensor tensor = at::full({5}, self.rank + 1, at::kFloat);
  all_reduce(self, tensor);
  require(at::equal(tensor, at::full({5}, self.ranks * (self.ranks + 1) / 2, at::kFloat)), "the team does not work");
}

void expect_all_well(const std::vector<std::string>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) EXPECT_EQ(outcomes[rank], "") << "rank " << rank;
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

class TeamTest : public ::testing::TestWithParam<std::tuple<RankKind, int64_t>> {
 protected:
  TeamTest() { at::set_num_threads(1); }
  RankKind kind() const { return std::get<0>(GetParam()); }
  int64_t ranks() const { return std::get<1>(GetParam()); }
  std::vector<std::string> run(const team_testing::RankBody& body,
                               std::chrono::milliseconds timeout = kPatience) const {
    return run_ranks(kind(), ranks(), body, timeout);
  }
};

std::string name_of_case(const ::testing::TestParamInfo<TeamTest::ParamType>& info) {
  return (std::get<0>(info.param) == RankKind::kThreads ? "Threads" : "Processes") +
         std::to_string(std::get<1>(info.param));
}

const auto kAllTeams = ::testing::Combine(::testing::Values(RankKind::kThreads, RankKind::kProcesses),
                                          ::testing::Values<int64_t>(1, 2, 3, 4));
const auto kTeamsOfSeveral =
    ::testing::Combine(::testing::Values(RankKind::kThreads, RankKind::kProcesses), ::testing::Values<int64_t>(2, 3));

// ---- Results ----

class SharedMemoryReduction : public TeamTest {};

TEST_P(SharedMemoryReduction, AllReduceEqualsTheSerialReferenceBitForBit) {
  expect_all_well(run([](RankUnderTest& self) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                      at::kShort, at::kChar, at::kByte, at::kBool}) {
      for (const RedOpType op : {RedOpType::SUM, RedOpType::AVG, RedOpType::MIN, RedOpType::MAX}) {
        if (type == at::kBool && op == RedOpType::AVG) continue;
        for (const int64_t count : kSizes) {
          if (count > 100000 && (type != at::kFloat || op != RedOpType::SUM)) continue;
          const at::Tensor tensor = values_of(self.rank, count, type);
          all_reduce(self, tensor, op);
          require(at::equal(tensor, expected_reduction(self.ranks, count, type, op)),
                  fmt::format("operation {} on {} elements of {} is wrong", static_cast<int>(op), count,
                              c10::toString(type)));
        }
      }
    }
  }));
}

TEST_P(SharedMemoryReduction, TensorsMayBeLargerThanAllSharedMemory) {
  expect_all_well(run([](RankUnderTest& self) {
    const at::Tensor numbers = at::arange(3'000'011, at::kInt);
    at::Tensor tensor = numbers + self.rank;
    all_reduce(self, tensor);
    require(at::equal(tensor, numbers * self.ranks + self.ranks * (self.ranks - 1) / 2), "all_reduce is wrong");
    tensor = numbers + self.rank;
    Tensors tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = self.ranks - 1;
    self.backend->broadcast(tensors, options)->wait();
    require(at::equal(tensor, numbers + self.ranks - 1), "broadcast is wrong");
  }));
}

/// All-reduces a list of the ranks' tensors, multiplied by a third.
void add_up_thirds(RankUnderTest& self, Tensors tensors) {
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = c10d::makeNCCLPreMulSum(1.0 / 3);
  self.backend->allreduce_coalesced(tensors, options)->wait();
}

TEST_P(SharedMemoryReduction, ListsOfTensorsAreMultipliedAndAddedUpInPlace) {
  expect_all_well(run([](RankUnderTest& self) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      for (const auto& counts : std::vector<std::vector<int64_t>>{
               {7}, {0}, {0, 3, 0, 5}, {16, 1, 1, 200003, 2}, {100352, 128, 1280, 10}, {1023, 1025, 40007}}) {
        Tensors tensors, expected;
        for (size_t i = 0; i < counts.size(); ++i) {
          const auto seed = static_cast<int64_t>(i);
          tensors.push_back(values_of(self.rank, counts[i], type, seed));
          at::Tensor sum = values_of(0, counts[i], type, seed) * (1.0 / 3);
          for (int64_t rank = 1; rank < self.ranks; ++rank)
            sum = sum + values_of(rank, counts[i], type, seed) * (1.0 / 3);
          expected.push_back(sum);
        }
        add_up_thirds(self, tensors);
        for (size_t i = 0; i < counts.size(); ++i) require(at::equal(tensors[i], expected[i]), "another sum");
      }
    }
    require_working(self);
  }));
}

TEST_P(SharedMemoryReduction, ListsMustBeAlikeOfOneTypeAndWithoutGaps) {
  expect_all_well(run([](RankUnderTest& self) {
    const auto refusal = [&](Tensors tensors) { return message_of([&] { add_up_thirds(self, std::move(tensors)); }); };
    require(refusal({}).find("no tensors") != std::string::npos, "an empty list");
    require(refusal({at::zeros({3}, at::kHalf)}).find("float32 or float64") != std::string::npos, "float16");
    require(refusal({at::zeros({3}), at::zeros({3}, at::kDouble)}).find("one type") != std::string::npos, "two types");
    require(refusal({at::zeros({4, 4}).slice(1, 0, 2)}).find("with gaps") != std::string::npos, "gaps");
    if (self.ranks > 1) {
      const Tensors other = self.rank == 0 ? Tensors{at::zeros({4})} : Tensors{at::zeros({3}), at::zeros({1})};
      require(refusal(other).find("do not fit together") != std::string::npos, "other lists");
    }
    require_working(self);
  }));
}

TEST_P(SharedMemoryReduction, ComplexNumbersAddUp) {
  expect_all_well(run([](RankUnderTest& self) {
    for (const auto op : {RedOpType::SUM, RedOpType::AVG}) {
      const at::Tensor tensor = at::complex(at::full({3000}, self.rank + 1.0), at::full({3000}, -2.0));
      all_reduce(self, tensor, op);
      const auto divisor = static_cast<double>(op == RedOpType::AVG ? self.ranks : 1);
      const auto sum = static_cast<double>(self.ranks * (self.ranks + 1)) / 2;
      require(at::equal(tensor, at::complex(at::full({3000}, sum / divisor),
                                            at::full({3000}, -2.0 * static_cast<double>(self.ranks) / divisor))),
              "the sum is wrong");
    }
  }));
}

TEST_P(SharedMemoryReduction, NanAndInfinitySpread) {
  expect_all_well(run([](RankUnderTest& self) {
    for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const RedOpType op : {RedOpType::SUM, RedOpType::AVG, RedOpType::MIN, RedOpType::MAX}) {
        for (int64_t where = 0; where < self.ranks; ++where) {
          const at::Tensor tensor = values_of(self.rank, 40007, type);
          if (self.rank == where) tensor.slice(0, 0, 40007, 11).fill_(std::numeric_limits<float>::quiet_NaN());
          if (self.rank == where && op == RedOpType::SUM)
            tensor.slice(0, 1, 40007, 11).fill_(std::numeric_limits<float>::infinity());
          all_reduce(self, tensor, op);
          require(tensor.slice(0, 0, 40007, 11).isnan().all().item<bool>(), "a NaN is lost");
          require(!tensor.slice(0, 2, 40007, 11).isnan().any().item<bool>(), "a NaN comes from nowhere");
          if (op == RedOpType::SUM)
            require(tensor.slice(0, 1, 40007, 11).isinf().all().item<bool>(), "an infinity is lost");
        }
      }
    }
  }));
}

TEST_P(SharedMemoryReduction, ReduceGivesTheRootTheResultAndLeavesTheOthersAlone) {
  expect_all_well(run([](RankUnderTest& self) {
    for (int64_t root = 0; root < self.ranks; ++root) {
      for (const int64_t count : kSizes) {
        Tensors tensors{values_of(self.rank, count, at::kFloat, root)};
        c10d::ReduceOptions options;
        options.rootRank = root;
        self.backend->reduce(tensors, options)->wait();
        require(at::equal(tensors[0], self.rank == root
                                          ? expected_reduction(self.ranks, count, at::kFloat, RedOpType::SUM, root)
                                          : values_of(self.rank, count, at::kFloat, root)),
                fmt::format("reduce of {} elements is wrong", count));
      }
    }
  }));
}

TEST_P(SharedMemoryReduction, ReduceScatterGivesEachRankItsPart) {
  expect_all_well(run([](RankUnderTest& self) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const int64_t count : kSizes) {
        if (count > 100000 && type != at::kFloat) continue;
        for (const RedOpType op : {RedOpType::SUM, RedOpType::AVG}) {
          if (count > 100000 && op == RedOpType::AVG) continue;
          c10d::ReduceScatterOptions options;
          options.reduceOp = op;
          at::Tensor input = values_of(self.rank, count * self.ranks, type);
          const at::Tensor expected =
              expected_reduction(self.ranks, count * self.ranks, type, op).narrow(0, self.rank * count, count);
          at::Tensor output = at::empty({count}, type);
          self.backend->_reduce_scatter_base(output, input, options)->wait();
          require(at::equal(output, expected), fmt::format("_reduce_scatter_base of {} elements is wrong", count));
          require(at::equal(input, values_of(self.rank, count * self.ranks, type)), "the input has changed");

          std::vector<Tensors> inputs{input.chunk(self.ranks)};
          Tensors outputs{at::empty({count}, type)};
          if (count > 0) self.backend->reduce_scatter(outputs, inputs, options)->wait();
          require(at::equal(outputs[0], expected), fmt::format("reduce_scatter of {} elements is wrong", count));

          at::Tensor in_place = input.narrow(0, self.rank * count, count);
          self.backend->_reduce_scatter_base(in_place, input, options)->wait();
          require(at::equal(in_place, expected), fmt::format("in-place reduce_scatter of {} is wrong", count));

          // At another place of the input than the rank's own: legal, if unusual.
          at::Tensor fresh = values_of(self.rank, count * self.ranks, type);
          at::Tensor elsewhere = fresh.narrow(0, 0, count);
          self.backend->_reduce_scatter_base(elsewhere, fresh, options)->wait();
          require(at::equal(elsewhere, expected), fmt::format("overlapping reduce_scatter of {} is wrong", count));
        }
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Teams, SharedMemoryReduction, kAllTeams, name_of_case);

class SharedMemoryCopying : public TeamTest {};

TEST_P(SharedMemoryCopying, BroadcastFromEveryRoot) {
  expect_all_well(run([](RankUnderTest& self) {
    for (int64_t root = 0; root < self.ranks; ++root) {
      for (const at::ScalarType type : {at::kFloat, at::kBool, at::kLong, at::kComplexFloat}) {
        for (const int64_t count : kSizes) {
          const auto make = [&](int64_t rank) {
            return values_of(rank, count, type == at::kComplexFloat ? at::kFloat : type).to(type);
          };
          Tensors tensors{make(self.rank)};
          c10d::BroadcastOptions options;
          options.rootRank = root;
          self.backend->broadcast(tensors, options)->wait();
          require(at::equal(tensors[0], make(root)), fmt::format("broadcast of {} elements is wrong", count));
        }
      }
    }
  }));
}

TEST_P(SharedMemoryCopying, AllGatherInBothForms) {
  expect_all_well(run([](RankUnderTest& self) {
    for (const int64_t count : kSizes) {
      Tensors parts;
      for (int64_t rank = 0; rank < self.ranks; ++rank) parts.push_back(values_of(rank, count, at::kFloat));
      at::Tensor input = parts[self.rank].clone();
      at::Tensor whole = at::empty({count * self.ranks});
      self.backend->_allgather_base(whole, input, {})->wait();
      require(at::equal(whole, at::cat(parts)), fmt::format("_allgather_base of {} elements is wrong", count));

      whole = at::zeros({count * self.ranks});
      at::Tensor own = whole.narrow(0, self.rank * count, count);
      own.copy_(input);
      self.backend->_allgather_base(whole, own, {})->wait();
      require(at::equal(whole, at::cat(parts)), fmt::format("in-place all_gather of {} elements is wrong", count));

      whole = at::zeros({count * self.ranks});
      at::Tensor elsewhere = whole.narrow(0, (self.ranks - 1) * count, count);
      elsewhere.copy_(input);
      self.backend->_allgather_base(whole, elsewhere, {})->wait();
      require(at::equal(whole, at::cat(parts)), fmt::format("overlapping all_gather of {} elements is wrong", count));

      std::vector<Tensors> lists{{}};
      for (int64_t rank = 0; rank < self.ranks; ++rank) lists[0].push_back(at::empty({count}));
      Tensors inputs{input};
      self.backend->allgather(lists, inputs, {})->wait();
      for (int64_t rank = 0; rank < self.ranks; ++rank)
        require(at::equal(lists[0][rank], parts[rank]), fmt::format("allgather of {} elements is wrong", count));
    }
  }));
}

TEST_P(SharedMemoryCopying, GatherAndScatter) {
  expect_all_well(run([](RankUnderTest& self) {
    for (int64_t root = 0; root < self.ranks; ++root) {
      for (const int64_t count : kSizes) {
        const bool is_root = self.rank == root;
        c10d::GatherOptions gather_options;
        gather_options.rootRank = root;
        std::vector<Tensors> lists;
        if (is_root) lists.emplace_back();
        for (int64_t rank = 0; is_root && rank < self.ranks; ++rank) lists[0].push_back(at::empty({count}));
        Tensors inputs{values_of(self.rank, count, at::kFloat, root)};
        self.backend->gather(lists, inputs, gather_options)->wait();
        for (int64_t rank = 0; is_root && rank < self.ranks; ++rank)
          require(at::equal(lists[0][rank], values_of(rank, count, at::kFloat, root)), "gather is wrong");

        c10d::ScatterOptions scatter_options;
        scatter_options.rootRank = root;
        Tensors outputs{at::empty({count})};
        for (int64_t rank = 0; is_root && rank < self.ranks; ++rank) lists[0][rank].add_(1);
        self.backend->scatter(outputs, lists, scatter_options)->wait();
        require(at::equal(outputs[0], inputs[0] + 1), fmt::format("scatter of {} elements is wrong", count));
      }
    }
  }));
}

TEST_P(SharedMemoryCopying, TensorsWithGapsAndLeavesThatTakeGradients) {
  expect_all_well(run([](RankUnderTest& self) {
    const auto strided = [&](int64_t rank) { return values_of(rank, 6000, at::kFloat).view({60, 100}); };
    const at::Tensor storage = strided(self.rank).clone();
    const at::Tensor untouched = storage.slice(1, 1, 100, 2).clone();
    const at::Tensor columns = storage.slice(1, 0, 100, 2);
    all_reduce(self, columns);
    at::Tensor expected = strided(0).slice(1, 0, 100, 2).clone();
    for (int64_t rank = 1; rank < self.ranks; ++rank) expected += strided(rank).slice(1, 0, 100, 2);
    require(at::equal(columns, expected), "all_reduce of columns is wrong");
    require(at::equal(storage.slice(1, 1, 100, 2), untouched), "the columns between have changed");

    at::Tensor whole = at::empty({50, 60 * self.ranks}).t();
    at::Tensor part = strided(self.rank).slice(1, 0, 100, 2);
    self.backend->_allgather_base(whole, part, {})->wait();
    for (int64_t rank = 0; rank < self.ranks; ++rank)
      require(at::equal(whole.narrow(0, rank * 60, 60), strided(rank).slice(1, 0, 100, 2)), "all_gather is wrong");

    const at::Tensor leaf = at::full({40, 30}, self.rank, at::kFloat).t().requires_grad_();
    Tensors leaves{leaf};
    self.backend->broadcast(leaves, {})->wait();
    require(leaf.detach().eq(0).all().item<bool>() && leaf.requires_grad(),
            "broadcast into a transposed leaf is wrong");
  }));
}

INSTANTIATE_TEST_SUITE_P(Teams, SharedMemoryCopying, kAllTeams, name_of_case);

// ---- Messages ----

class SharedMemoryMessages : public TeamTest {};

TEST_P(SharedMemoryMessages, EveryRankSendsToEveryOtherBeforeItReceives) {
  expect_all_well(run([](RankUnderTest& self) {
    for (const int64_t count : kSizes) {
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      std::vector<Tensors> received(self.ranks);
      for (int64_t other = 0; other < self.ranks; ++other) {
        if (other == self.rank) continue;
        Tensors message{values_of(self.rank, count, at::kFloat, other)};
        works.push_back(self.backend->send(message, static_cast<int>(other), 7));
      }
      for (int64_t other = 0; other < self.ranks; ++other) {
        received[other] = {at::empty({count})};
        if (other != self.rank) works.push_back(self.backend->recv(received[other], static_cast<int>(other), 7));
      }
      for (const auto& work : works) work->wait();
      for (int64_t other = 0; other < self.ranks; ++other)
        require(other == self.rank || at::equal(received[other][0], values_of(other, count, at::kFloat, self.rank)),
                fmt::format("a message of {} elements is wrong", count));
    }
  }));
}

TEST_P(SharedMemoryMessages, ReceivesBeforeSendsAndFuturesWithoutWaiting) {
  expect_all_well(run([](RankUnderTest& self) {
    const auto next = static_cast<int>((self.rank + 1) % self.ranks);
    const auto previous = static_cast<int>((self.rank + self.ranks - 1) % self.ranks);
    Tensors received{at::empty({500, 400}).t()};
    const auto receiving = self.backend->recv(received, previous, 0);
    Tensors message{values_of(self.rank, 200000, at::kFloat).view({400, 500})};
    const auto sending = self.backend->send(message, next, 0);
    const auto future = receiving->getFuture();
    future->wait();
    require(future->value().toTensorVector()[0].is_same(received[0]), "the future does not hold the tensor");
    require(at::equal(received[0], values_of(previous, 200000, at::kFloat).view({400, 500})), "the message is wrong");
    sending->wait();
    receiving->wait();
    require(sending->isSuccess() && receiving->isSuccess(), "not successful");
  }));
}

TEST_P(SharedMemoryMessages, TagsMayBeReceivedInAnotherOrder) {
  expect_all_well(run([](RankUnderTest& self) {
    constexpr int kTags = 5;
    if (self.rank == 0) {
      for (int tag = 0; tag < kTags; ++tag) {
        for (int copy = 0; copy < 2; ++copy) {
          Tensors message{at::full({tag * 20000 + 1}, 10 * tag + copy, at::kLong)};
          self.backend->send(message, 1, tag)->wait();
        }
      }
    } else if (self.rank == 1) {
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int copy = 0; copy < 2; ++copy) {
          Tensors message{at::zeros({tag * 20000 + 1}, at::kLong)};
          self.backend->recv(message, 0, tag)->wait();
          require(message[0].eq(10 * tag + copy).all().item<bool>(), fmt::format("message {} is wrong", tag));
        }
      }
    }
    self.backend->barrier()->wait();
  }));
}

TEST_P(SharedMemoryMessages, AMessageThatDoesNotFitEndsAllRanks) {
  const auto outcomes = run([](RankUnderTest& self) {
    if (self.rank == 0) {
      Tensors message{at::zeros({10})};
      self.backend->send(message, 1, 3)->wait();
    } else if (self.rank == 1) {
      Tensors message{at::zeros({11})};
      self.backend->recv(message, 0, 3)->wait();
    }
    self.backend->barrier()->wait();
  });
  for (const std::string& outcome : outcomes)
    expect_has(outcome,
               "[shared_memory] a message does not fit the tensor that shall receive it; got 10 Float elements "
               "from rank 0 (tag 3) for 11 Float elements on rank 1");
}

TEST_P(SharedMemoryMessages, AReceiveTimesOut) {
  const auto outcomes = run(
      [](RankUnderTest& self) {
        if (self.rank == 1) {
          Tensors message{at::zeros({11})};
          const auto work = self.backend->recv(message, 0, 3);
          const std::string error = message_of([&] { work->wait(); });
          require(work->getFuture()->hasError(), "the future has no error");
          throw std::runtime_error(error);
        }
        while (!self.team->is_aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        self.backend->barrier()->wait();
      },
      std::chrono::milliseconds(250));
  for (const std::string& outcome : outcomes)
    expect_has(outcome, "receive from rank 0 (tag 3) on rank 1 timed out after 0.25 s");
}

INSTANTIATE_TEST_SUITE_P(Teams, SharedMemoryMessages, kTeamsOfSeveral, name_of_case);

// ---- What goes wrong ----

class SharedMemoryMistakes : public TeamTest {};

TEST_P(SharedMemoryMistakes, DifferentCallsAreToldToAllRanksAndTheTeamGoesOn) {
  expect_all_well(run([](RankUnderTest& self) {
    const bool odd_one = self.rank == 1;
    const auto require_told = [&](const char* what, const std::function<void()>& call, const std::string& first,
                                  const std::string& second) {
      const std::string message = message_of(call);
      require(message.find("the ranks' calls do not fit together") != std::string::npos &&
                  message.find(first + " on rank 0") != std::string::npos &&
                  message.find(second + " on rank 1") != std::string::npos,
              fmt::format("{}: got '{}'", what, message));
      require_working(self);
    };
    for (const int64_t count : {10L, 100000L}) {
      require_told(
          "sizes", [&] { all_reduce(self, at::zeros({odd_one ? count + 1 : count})); },
          fmt::format("all_reduce (sum) of {} Float elements", count),
          fmt::format("all_reduce (sum) of {} Float elements", count + 1));
      require_told(
          "a small and a large one", [&] { all_reduce(self, at::zeros({odd_one ? 3 : count * 100})); },
          fmt::format("of {} Float elements", count * 100), "of 3 Float elements");
      require_told(
          "types", [&] { all_reduce(self, at::zeros({count}, odd_one ? at::kInt : at::kFloat)); },
          fmt::format("of {} Float elements", count), fmt::format("of {} Int elements", count));
      require_told(
          "operations", [&] { all_reduce(self, at::zeros({count}), odd_one ? RedOpType::MAX : RedOpType::SUM); },
          fmt::format("all_reduce (sum) of {} Float elements", count),
          fmt::format("all_reduce (max) of {} Float elements", count));
      require_told(
          "collectives",
          [&] {
            Tensors tensors{at::zeros({count})};
            if (odd_one)
              self.backend->broadcast(tensors, {})->wait();
            else
              self.backend->allreduce(tensors, {})->wait();
          },
          fmt::format("all_reduce (sum) of {} Float elements", count),
          fmt::format("broadcast (root 0) of {} Float elements", count));
      require_told(
          "roots",
          [&] {
            Tensors tensors{at::zeros({count})};
            c10d::BroadcastOptions options;
            options.rootRank = odd_one ? 1 : 0;
            self.backend->broadcast(tensors, options)->wait();
          },
          fmt::format("broadcast (root 0) of {} Float elements", count),
          fmt::format("broadcast (root 1) of {} Float elements", count));
    }
  }));
}

TEST_P(SharedMemoryMistakes, ATimeOutNamesTheMissingRankOnAllRanks) {
  std::vector<std::string> outcomes;
  // In a short time the others may not have come either.
  EXPECT_TRUE(testing::with_time_enough([&](std::chrono::seconds time) {
    outcomes = run(
        [](RankUnderTest& self) {
          if (self.rank == self.ranks - 1)
            while (!self.team->is_aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          all_reduce(self, at::zeros({100000}));
        },
        time);
    const std::string expected =
        fmt::format("[shared_memory] all_reduce timed out after {} s; waiting for rank {}", time.count(), ranks() - 1);
    return std::ranges::all_of(outcomes, [&](const std::string& outcome) { return outcome == expected; });
  })) << fmt::format("{}", fmt::join(outcomes, "\n"));
}

TEST_P(SharedMemoryMistakes, AbortEndsWaitingAndLaterCallsOnAllRanks) {
  const auto outcomes = run([](RankUnderTest& self) {
    std::thread helper;
    if (self.rank == 0) helper = std::thread([&self] { self.team->abort("rank 7 of another group failed"); });
    Tensors tensors{at::zeros({100000})};
    std::string message;
    // All but the last rank wait for it in a collective; the last only notices that it was aborted.
    if (self.rank == self.ranks - 1)
      while (!self.team->is_aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    message = message_of([&] { self.backend->allreduce(tensors)->wait(); });
    if (helper.joinable()) helper.join();
    self.team->abort("a later reason");
    require(message_of([&] { self.backend->barrier()->wait(); }) == message, "a later call says something else");
    require(message_of([&] {
              self.backend->send(tensors, static_cast<int>((self.rank + 1) % self.ranks), 0)->wait();
            }) == message,
            "a later message says something else");
    throw std::runtime_error(message);
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "[shared_memory] rank 7 of another group failed");
}

TEST_P(SharedMemoryMistakes, AbortAtAnyMomentNeverTouchesFreedTensors) {
  // The sanitizers watch: tensors go right after the failed call, while other ranks may still be in theirs.
  for (int repetition = 0; repetition < 5; ++repetition) {
    const auto outcomes = run([repetition](RankUnderTest& self) {
      for (int call = 0;; ++call) {
        const at::Tensor tensor = at::zeros({40000 + call % 7});
        if (self.rank == 0 && call == 20 * repetition + 3) self.team->abort("enough");
        all_reduce(self, tensor);
      }
    });
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "[shared_memory] enough");
  }
}

TEST_P(SharedMemoryMistakes, WrongTensorsAreRefusedBeforeAnybodyWaits) {
  expect_all_well(run([](RankUnderTest& self) {
    const auto require_refused = [](const std::function<void()>& call, const std::string& part) {
      const std::string message = message_of(call);
      require(message.find("[comm]") == 0 && message.find(part) != std::string::npos,
              fmt::format("'{}' lacks '{}'", message, part));
    };
    require_refused([&] { all_reduce(self, at::empty({3}, at::TensorOptions().device(at::kMeta))); },
                    "all_reduce takes dense CPU tensors; got a dense tensor on meta; hint: the backend nccl");
    require_refused([&] { all_reduce(self, at::zeros({3}).to_sparse()); }, "got a sparse tensor on cpu");
    require_refused([&] { all_reduce(self, at::zeros({3}), RedOpType::BXOR); }, "valid: SUM, AVG, MIN, MAX");
    require_refused([&] { all_reduce(self, at::zeros({3}, at::kComplexFloat), RedOpType::MAX); },
                    "the max of ComplexFloat elements");
    require_refused([&] { all_reduce(self, at::zeros({3}, at::kBool), RedOpType::AVG); }, "the mean of Bool elements");
    at::Tensor whole = at::zeros({7});
    at::Tensor part = at::zeros({2});
    require_refused([&] { self.backend->_allgather_base(whole, part)->wait(); }, "got 7 Float elements and 2 Float");
    Tensors pair{part, part};
    require_refused([&] { self.backend->broadcast(pair)->wait(); }, "broadcast takes one tensor a rank; got 2");
    Tensors one{part};
    require_refused([&] { self.backend->send(one, static_cast<int>(self.rank), 0)->wait(); }, "cannot send to");
    c10d::BroadcastOptions options;
    options.rootRank = self.ranks;
    require_refused([&] { self.backend->broadcast(one, options)->wait(); }, "root of broadcast is none of the ranks");
    require_working(self);
  }));
}

INSTANTIATE_TEST_SUITE_P(Teams, SharedMemoryMistakes, kTeamsOfSeveral, name_of_case);

/// Throws unless what this process shares is memory without a name, which ends with the last process that maps it.
void require_nameless_memory() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
  if (text.find("/memfd:levin_shared_memory (deleted)") == std::string::npos ||
      text.find("/dev/shm") != std::string::npos)
    throw Error("test", "the shared memory has a name:\n" + text);
}

TEST(SharedMemoryProcesses, AKilledRankEndsTheOthersAndLeavesNothing) {
  const auto outcomes = run_ranks(RankKind::kProcesses, 3, [](RankUnderTest& self) {
    for (int call = 0;; ++call) {
      if (self.rank == 1 && call == 50) raise(SIGKILL);
      if (self.rank == 0 && call == 10) require_nameless_memory();
      all_reduce(self, at::zeros({100000}));
    }
  });
  EXPECT_EQ(outcomes[1], "ended by signal 9");
  EXPECT_EQ(outcomes[0], "[shared_memory] all_reduce failed; rank 1 has ended or left");
  EXPECT_EQ(outcomes[2], outcomes[0]);
}

TEST(SharedMemoryProcesses, ARankThatLeavesEndsWhoWaitsForIt) {
  const auto outcomes = run_ranks(RankKind::kProcesses, 2, [](RankUnderTest& self) {
    if (self.rank == 1) return;
    Tensors message{at::zeros({10})};
    self.backend->recv(message, 1, 0)->wait();
  });
  EXPECT_EQ(outcomes[1], "");
  EXPECT_EQ(outcomes[0], "[shared_memory] receive from rank 1 (tag 0) on rank 0 failed; rank 1 has ended or left");
}

TEST(SharedMemoryProcesses, AMessageOutlivesItsSender) {
  const testing::Folder folder;
  const testing::Board board(folder.path());
  expect_all_well(run_ranks(RankKind::kProcesses, 2, [&](RankUnderTest& self) {
    Tensors message{at::full({100}, self.rank, at::kFloat)};
    if (self.rank == 1) {
      board.write_process("sender");
      return self.backend->send(message, 0, 0)->wait(), void();
    }
    const pid_t sender = board.process("sender");
    require(testing::eventually([&] { return testing::is_gone(sender); }), "the sender does not end");
    self.backend->recv(message, 1, 0)->wait();
    require(message[0].eq(1).all().item<bool>(), "the message is wrong");
  }));
}

TEST(SharedMemoryProcesses, WhoFormsATeamAloneIsToldWhoIsMissing) {
  const auto outcomes = run_processes(2, [](int64_t rank) {
    auto store = c10::make_intrusive<c10d::HashStore>();  // not shared: the ranks cannot find each other
    make_process_team(*store, rank, 2, std::chrono::milliseconds(500));
  });
  EXPECT_EQ(outcomes[0], "[shared_memory] forming the team timed out after 0.5 s; waiting for rank 1");
  expect_has(outcomes[1], "[shared_memory] rank 0 did not offer its memory within 0.5 s");
}

TEST(SharedMemoryProcesses, MemoryThatIsNotTheTeamsIsRefused) {
  EXPECT_THROW(TeamMemory::open("nonsense", 2), Error);
  expect_has(message_of([] { TeamMemory::open("1 999 7", 2); }), "must be processes of one user on one host");
  const auto memory = TeamMemory::for_processes(2);
  expect_has(message_of([&] { TeamMemory::open(memory->address(), 3); }), "bytes instead of");
  expect_has(message_of([&] { TeamMemory::open(memory->address() + "1", 2); }), "another content");
  EXPECT_NO_THROW(TeamMemory::open(memory->address(), 2));
}

TEST(SharedMemoryProcesses, RanksMustExist) {
  c10d::HashStore store;
  EXPECT_THROW(make_process_team(store, 2, 2, kPatience), Error);
  EXPECT_THROW(make_thread_team(0), Error);
  EXPECT_THROW(make_shared_memory_backend(make_thread_team(2), 2, kPatience), Error);
}

// ---- The whole ----

class SharedMemoryEndurance : public TeamTest {};

TEST_P(SharedMemoryEndurance, ThousandsOfMixedOperations) {
  expect_all_well(run([](RankUnderTest& self) {
    std::mt19937 random(11);  // the same on all ranks
    const auto pick = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
    for (int call = 0; call < 2000; ++call) {
      const std::vector<int64_t> counts = {1, 7, 1024, 1025, 5000, 70000};
      const int64_t count = counts[pick(call % 50 == 0 ? 6 : 5)];
      const int64_t root = pick(self.ranks);
      const int64_t operation = pick(7);
      Tensors tensors{at::full({count}, self.rank + call, at::kLong)};
      const int64_t sum = self.ranks * call + self.ranks * (self.ranks - 1) / 2;
      const auto require_all = [&](const at::Tensor& tensor, int64_t value) {
        require(tensor.eq(value).all().item<bool>(), fmt::format("call {}, operation {} is wrong", call, operation));
      };
      if (operation == 0) {
        self.backend->allreduce(tensors)->wait();
        require_all(tensors[0], sum);
      } else if (operation == 1) {
        c10d::BroadcastOptions options;
        options.rootRank = root;
        self.backend->broadcast(tensors, options)->wait();
        require_all(tensors[0], root + call);
      } else if (operation == 2) {
        at::Tensor whole = at::empty({count * self.ranks}, at::kLong);
        self.backend->_allgather_base(whole, tensors[0])->wait();
        for (int64_t rank = 0; rank < self.ranks; ++rank)
          require_all(whole.narrow(0, rank * count, count), rank + call);
      } else if (operation == 3) {
        at::Tensor whole = tensors[0].repeat({self.ranks});
        self.backend->_reduce_scatter_base(tensors[0], whole)->wait();
        require_all(tensors[0], sum);
      } else if (operation == 4) {
        self.backend->barrier()->wait();
      } else if (operation == 5) {
        c10d::ReduceOptions options;
        options.rootRank = root;
        self.backend->reduce(tensors, options)->wait();
        require_all(tensors[0], self.rank == root ? sum : self.rank + call);
      } else if (self.ranks > 1) {
        const auto next = static_cast<int>((self.rank + 1) % self.ranks);
        const auto previous = static_cast<int>((self.rank + self.ranks - 1) % self.ranks);
        Tensors received{at::empty({count}, at::kLong)};
        const auto sending = self.backend->send(tensors, next, call);
        self.backend->recv(received, previous, call)->wait();
        sending->wait();
        require_all(received[0], previous + call);
      }
    }
  }));
}

TEST_P(SharedMemoryEndurance, NobodyLeavesABarrierBeforeAllHaveCome) {
  if (kind() == RankKind::kProcesses) return;  // the counter is this process's; barriers are shared code
  std::atomic<int64_t> come{0};
  expect_all_well(run([&](RankUnderTest& self) {
    for (int64_t round = 1; round <= 2000; ++round) {
      come.fetch_add(1, std::memory_order_relaxed);
      self.backend->barrier()->wait();
      require(come.load(std::memory_order_relaxed) >= round * self.ranks, "left early");
    }
  }));
}

TEST_P(SharedMemoryEndurance, TeamsOfSomeRanks) {
  expect_all_well(run([](RankUnderTest& self) {
    std::vector<int64_t> backwards;
    std::vector<int64_t> even;
    for (int64_t rank = self.ranks - 1; rank >= 0; --rank) backwards.push_back(rank);
    for (int64_t rank = 0; rank < self.ranks; rank += 2) even.push_back(rank);
    for (int repetition = 0; repetition < 3; ++repetition) {
      for (const auto& members : {backwards, even}) {
        const auto team = self.team->subteam({self.rank, kPatience}, members);
        const auto position = std::find(members.begin(), members.end(), self.rank) - members.begin();
        require((team != nullptr) == (position < static_cast<int64_t>(members.size())), "not the members asked for");
        if (team == nullptr) continue;
        RankUnderTest sub{position, static_cast<int64_t>(members.size()), team,
                          make_shared_memory_backend(team, position, kPatience)};
        const at::Tensor tensor = values_of(self.rank, 50000, at::kFloat);
        all_reduce(sub, tensor);
        Tensors parts;
        for (const int64_t member : members) parts.push_back(values_of(member, 50000, at::kFloat));
        require(at::equal(tensor, combined(parts, RedOpType::SUM)), "the team of some ranks sums wrong");
      }
    }
    require_working(self);
    const std::vector<int64_t> twice = {0, 0};
    require(message_of([&] {
              self.team->subteam({self.rank, kPatience}, twice);
            }).find("each once") != std::string::npos,
            "a rank named twice is not refused");
  }));
}

INSTANTIATE_TEST_SUITE_P(Teams, SharedMemoryEndurance, kAllTeams, name_of_case);

/// A model whose parameters every rank builds alike.
torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(20, 64), torch::nn::Tanh(), torch::nn::Linear(64, 3));
  const at::NoGradGuard guard;
  int64_t seed = 0;
  for (at::Tensor& parameter : model->parameters())
    parameter.copy_(values_of(0, parameter.numel(), at::kFloat, ++seed).view(parameter.sizes()) * 0.2);
  return model;
}

at::Tensor loss_of(torch::nn::Sequential& model, const at::Tensor& inputs, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(model->forward(inputs), targets);
}

class SharedMemoryReducer : public TeamTest {};

TEST_P(SharedMemoryReducer, GradientsEqualThoseOfTheWholeBatch) {
  constexpr int64_t kBatch = 12;
  constexpr int64_t kSteps = 5;
  for (const bool compressed : {false, true}) {
    expect_all_well(run([&](RankUnderTest& self) {
      auto store = c10::make_intrusive<c10d::HashStore>();
      auto group =
          c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(self.rank), static_cast<int>(self.ranks));
      group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, self.backend);
      group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);

      auto model = make_model();
      auto alone = make_model();
      const auto parameters = model->parameters();
      const std::vector<size_t> limits{1024, 4096};  // several buckets
      auto [buckets, sizes] =
          c10d::compute_bucket_assignment_by_size(parameters, limits, std::vector<bool>(parameters.size(), false));
      std::reverse(buckets.begin(), buckets.end());
      c10d::Reducer reducer(parameters, buckets, group, std::vector<bool>(parameters.size(), false), 4096, false, true,
                            {}, 1024, false, false, {});
      if (compressed) reducer.register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);

      for (int64_t step = 0; step < kSteps; ++step) {
        const at::Tensor inputs = values_of(9, kBatch * 20, at::kFloat, step).view({kBatch, 20});
        const at::Tensor targets = values_of(9, kBatch, at::kLong, step) % 3;
        reducer.rebuild_buckets();
        const int64_t part = kBatch / self.ranks;
        const at::Tensor loss =
            loss_of(model, inputs.narrow(0, self.rank * part, part), targets.narrow(0, self.rank * part, part));
        reducer.prepare_for_backward({});
        loss.backward();
        loss_of(alone, inputs, targets).backward();

        const at::NoGradGuard guard;
        const auto reference = alone->parameters();
        for (size_t i = 0; i < parameters.size(); ++i) {
          const at::Tensor gradient = parameters[i].grad();
          require(gradient.allclose(reference[i].grad(), compressed ? 1e-2 : 1e-5, compressed ? 1e-3 : 1e-6),
                  fmt::format("the gradient of parameter {} differs in step {}", i, step));
          at::Tensor on_all = at::empty({self.ranks * gradient.numel()});
          at::Tensor mine = gradient.clone().view(-1);
          self.backend->_allgather_base(on_all, mine)->wait();
          for (int64_t rank = 0; rank < self.ranks; ++rank)
            require(at::equal(on_all.narrow(0, rank * mine.numel(), mine.numel()), mine), "ranks hold different bits");
          parameters[i].sub_(gradient, 0.1);
          reference[i].copy_(parameters[i]);
          gradient.zero_();
          reference[i].grad().zero_();
        }
      }
      self.backend->barrier()->wait();  // not the group's, which keeps a tensor in a static variable
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Teams, SharedMemoryReducer, kAllTeams, name_of_case);

TEST(SharedMemoryWork, HasACompletedFutureWithTheTensors) {
  const auto team = make_thread_team(1);
  const auto backend = make_shared_memory_backend(team, 0, kPatience);
  EXPECT_EQ(backend->getBackendName(), "shared_memory");
  Tensors tensors{at::full({3}, 2.0)};
  const auto work = backend->allreduce(tensors);
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->isSuccess());
  EXPECT_TRUE(work->wait());
  const auto future = work->getFuture();
  ASSERT_TRUE(future->completed());
  EXPECT_TRUE(future->value().toTensorVector()[0].is_same(tensors[0]));
  bool called = false;
  future->addCallback([&](c10::ivalue::Future&) { called = true; });
  EXPECT_TRUE(called);
}

}  // namespace
}  // namespace levin
