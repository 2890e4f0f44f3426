#include "tests/support/sim_device/sim_nccl.h"
#include "tests/support/sim_device/sim_device.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <barrier>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace levin::testing {
namespace {

using namespace std::chrono_literals;
using sim::device;
using sim::SimNccl;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Only a hang takes so long.
constexpr auto kPatience = 240s;

/// Runs a body on two threads, ranks 0 and 1 on sim:0 and sim:1, and returns their errors, empty for none.
std::vector<std::string> on_two_ranks(const std::function<void(SimNccl&, int, const at::Device&)>& body,
                                      bool own_devices = true) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const at::Device here = device(own_devices ? static_cast<c10::DeviceIndex>(rank) : 0);
      at::accelerator::setDeviceIndex(here.index());
      SimNccl group(store, rank, 2, kPatience);
      try {
        body(group, rank, here);
        group.shutdown();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        group.abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

at::Tensor numbers(int rank, const at::Device& here) { return at::arange(4, here).to(at::kFloat).add(10 * rank); }

c10::intrusive_ptr<c10d::Work> send(SimNccl& group, const at::Tensor& tensor, int to) {
  std::vector<at::Tensor> tensors = {tensor};
  return group.send(tensors, to, 0);
}
c10::intrusive_ptr<c10d::Work> receive(SimNccl& group, const at::Tensor& tensor, int from) {
  std::vector<at::Tensor> tensors = {tensor};
  return group.recv(tensors, from, 0);
}
c10::intrusive_ptr<c10d::Work> all_reduce(SimNccl& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  return group.allreduce(tensors, {});
}

TEST(SimNccl, CollectivesMoveData) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    std::vector<at::Tensor> sum = {numbers(rank, here)};
    group.allreduce(sum, {})->wait(kNoTimeout);
    EXPECT_TRUE(sum[0].cpu().equal(at::tensor({10.0F, 12.0F, 14.0F, 16.0F})));
    std::vector<at::Tensor> mean = {numbers(rank, here)};
    group.allreduce(mean, {.reduceOp = c10d::ReduceOp::AVG})->wait(kNoTimeout);
    EXPECT_TRUE(mean[0].cpu().equal(at::tensor({5.0F, 6.0F, 7.0F, 8.0F})));
    std::vector<at::Tensor> of_one = {numbers(rank, here)};
    c10d::BroadcastOptions from_one;
    from_one.rootRank = 1;
    group.broadcast(of_one, from_one)->wait(kNoTimeout);
    EXPECT_EQ(of_one[0][0].item<float>(), 10);
    at::Tensor own = numbers(rank, here), all = at::empty({8}, here), part = at::empty({2}, here);
    group._allgather_base(all, own, {})->wait(kNoTimeout);
    EXPECT_TRUE(all.cpu().equal(at::cat({numbers(0, at::kCPU), numbers(1, at::kCPU)})));
    group._reduce_scatter_base(part, own, {})->wait(kNoTimeout);
    EXPECT_EQ(part[1].item<float>(), 12 + 4 * rank);
    group.barrier({})->wait(kNoTimeout);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_THAT(sim::report().faults, IsEmpty());
}

TEST(SimNccl, CollectivesOrderStreamsWithoutAHostWait) {
  on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    at::Tensor tensor = numbers(rank, here);
    all_reduce(group, tensor)->wait(kNoTimeout);  // makes the communicator
    if (rank == 0) sim::reset_report();
    for (int i = 0; i < 3; ++i) {
      const auto work = all_reduce(group, tensor);
      work->wait(kNoTimeout);
      tensor.mul_(0.5);
    }
  });
  EXPECT_THAT(sim::report().faults, IsEmpty());
  EXPECT_EQ(sim::report().total_waits(), 0) << sim::report().to_string();
}

TEST(SimNccl, TouchingATensorBeforeItsOperationIsWaitedForIsARace) {
  on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    at::Tensor tensor = numbers(rank, here);
    const auto work = all_reduce(group, tensor);
    if (rank == 0) tensor.mul_(2);
    work->wait(kNoTimeout);
  });
  const auto faults = sim::report().faults;
  ASSERT_EQ(faults.size(), 2) << sim::report().to_string();
  EXPECT_THAT(faults.begin()->first, HasSubstr("aten::mul on sim:0 stream 0 reads memory that sim_nccl ALLREDUCE"));
}

TEST(SimNccl, AFutureOrdersStreamsToo) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    at::Tensor tensor = numbers(rank, here);
    const auto future = all_reduce(group, tensor)->getFuture();
    future->wait();
    EXPECT_EQ(tensor.sum().item<float>(), 52);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_THAT(sim::report().faults, IsEmpty());
}

TEST(SimNccl, MessagesArriveInOrder) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    for (int i = 0; i < 3; ++i) {
      at::Tensor tensor = rank == 0 ? at::full({3}, i, here) : at::empty({3}, at::TensorOptions(here).dtype(at::kLong));
      (rank == 0 ? send(group, tensor, 1) : receive(group, tensor, 0))->wait(kNoTimeout);
      if (rank == 1) EXPECT_EQ(tensor[2].item<int64_t>(), i);
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SimNccl, TwoDirectionsOfOnePairHoldEachOtherUp) {
  // Both send first: the receives are behind them on the pair's only communicator.
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    const at::Tensor given = numbers(rank, here);
    const at::Tensor taken = at::empty({4}, here);
    // Makes the communicator.
    (rank == 0 ? send(group, given, 1) : receive(group, taken, 0))->wait(kNoTimeout);
    group.setTimeout(200ms);
    const auto sent = send(group, given, 1 - rank);
    const auto received = receive(group, taken, 1 - rank);
    received->wait(kNoTimeout);
  });
  EXPECT_THAT(errors, Each(HasSubstr("watchdog: SEND")));
}

TEST(SimNccl, TwoDirectionsOfABatchDoNot) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    const at::Tensor given = numbers(rank, here);
    const at::Tensor taken = at::empty({4}, here);
    group.startCoalescing();
    send(group, given, 1 - rank);
    receive(group, taken, 1 - rank);
    group.endCoalescing()->wait(kNoTimeout);
    EXPECT_TRUE(taken.cpu().equal(numbers(1 - rank, at::kCPU)));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SimNccl, ASendReturnsBeforeThePeerHasCome) {
  std::promise<void> looked;
  const auto errors = on_two_ranks([&](SimNccl& group, int rank, const at::Device& here) {
    at::Tensor tensor = numbers(0, here);
    (rank == 0 ? send(group, tensor, 1) : receive(group, tensor, 0))->wait(kNoTimeout);  // makes the communicator
    if (rank == 1) looked.get_future().wait();
    const auto work = rank == 0 ? send(group, tensor, 1) : receive(group, tensor, 0);
    if (rank == 0) {
      EXPECT_FALSE(work->isCompleted());
      looked.set_value();
    }
    work->wait(kNoTimeout);
    EXPECT_TRUE(work->isCompleted());
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SimNccl, MakingACommunicatorBlocksUntilThePeerComes) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    group.setTimeout(100ms);
    if (rank == 0) send(group, numbers(0, here), 1);
  });
  EXPECT_THAT(errors[0], HasSubstr("time-out while rank 0 created a communicator: 1 of 2"));
  EXPECT_EQ(sim::report().waits.at(sim::Wait::kCommunicator), 1);
}

TEST(SimNccl, AWatchdogEndsWhatTakesTooLong) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    const at::Tensor tensor = numbers(rank, here);
    all_reduce(group, tensor)->wait(kNoTimeout);
    group.setTimeout(100ms);
    if (rank == 0) all_reduce(group, tensor)->getFuture()->waitAndThrow();
  });
  EXPECT_THAT(errors[0], HasSubstr("watchdog: ALLREDUCE of rank 0 did not complete within 100 ms"));
  EXPECT_THAT(errors[1], IsEmpty());
}

TEST(SimNccl, AbortEndsAWaitAndRefusesWhatFollows) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    const at::Tensor tensor = numbers(rank, here);
    all_reduce(group, tensor)->wait(kNoTimeout);
    if (rank == 1) return;
    const auto work = all_reduce(group, tensor);
    std::thread other([&] {
      std::this_thread::sleep_for(20ms);
      group.abort();
    });
    EXPECT_THROW(work->wait(kNoTimeout), c10::DistBackendError);
    other.join();
    EXPECT_THROW(all_reduce(group, tensor), c10::DistBackendError);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SimNccl, RanksThatCallDifferentCollectivesAreTold) {
  const auto errors = on_two_ranks([](SimNccl& group, int rank, const at::Device& here) {
    all_reduce(group, at::ones({rank + 3}, here))->wait(kNoTimeout);
  });
  EXPECT_THAT(errors, Each(HasSubstr("different collectives")));
}

TEST(SimNccl, TwoRanksOnOneDeviceAreRefused) {
  std::array<SimNccl*, 2> groups{};
  std::barrier together(2);
  const auto errors = on_two_ranks(
      [&](SimNccl& group, int rank, const at::Device& here) {
        groups[static_cast<size_t>(rank)] = &group;
        together.arrive_and_wait();
        try {
          all_reduce(group, numbers(rank, here))->wait(kNoTimeout);
        } catch (const std::exception& error) {
          // The one that came first waits for this one.
          if (std::string(error.what()).find("duplicate device") != std::string::npos)
            groups[static_cast<size_t>(1 - rank)]->abort();
          throw;
        }
      },
      /*own_devices=*/false);
  EXPECT_THAT(errors[0] + errors[1], HasSubstr("duplicate device"));
}

TEST(SimNccl, AGroupThatIsDroppedWithoutShutdownLeaks) {
  const int64_t before = SimNccl::communicators_alive();
  const auto use = [](SimNccl& group, int rank, const at::Device& here) {
    all_reduce(group, numbers(rank, here))->wait(kNoTimeout);
  };
  on_two_ranks(use);
  EXPECT_EQ(SimNccl::communicators_alive(), before);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::thread peer([&] {
    at::accelerator::setDeviceIndex(1);
    SimNccl group(store, 1, 2, kPatience);
    use(group, 1, device(1));
  });
  {
    SimNccl group(store, 0, 2, kPatience);
    use(group, 0, device(0));
    peer.join();
  }
  EXPECT_EQ(SimNccl::communicators_alive(), before + 1);
}

}  // namespace
}  // namespace levin::testing
