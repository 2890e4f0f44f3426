#include <levin/strategies/comm/process_group.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/c10d_collective.h>
#include <levin/strategies/comm/nccl_backend.h>
#include <levin/strategies/comm/network.h>
#include <levin/strategies/comm/rendezvous.h>
#include <tests/strategies/launcher_support.h>
#include <tests/strategies/run_ranks.h>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace levin {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::expect_contains;
using testing::message_of;
using testing::RankKind;
using testing::run_ranks;
using testing::ScopedVariable;

/// Two ranks add 1 and 2.
void expect_group_works(const ProcessGroupOptions& wanted) {
  run_ranks(RankKind::kThreads, 2, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    ProcessGroupOptions options = wanted;
    options.rank = rank;
    options.world_size = 2;
    C10dCollective group(make_process_group(store, options), store, options);
    at::Tensor tensor = at::full({3}, rank + 1, at::TensorOptions(options.device).dtype(at::kLong));
    group.all_reduce(tensor, ReduceOp::kSum)->wait();
    EXPECT_TRUE(tensor.eq(3).all().item<bool>());
    group.barrier();
  });
}

TEST(ProcessGroupTest, NobodyConnectsToGlooOnceTheRanksHave) {
  const std::vector<int> before = listening_sockets();
  run_ranks(RankKind::kThreads, 2, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const ProcessGroupOptions options{.backend = "gloo", .rank = rank, .world_size = 2};
    C10dCollective group(make_process_group(store, options), store, options);
    group.barrier();
    if (rank == 0) {
      size_t sockets = 0;
      for (const int socket : listening_sockets()) {
        if (std::binary_search(before.begin(), before.end(), socket)) continue;
        ++sockets;
        EXPECT_FALSE(connect_to("127.0.0.1", bound_port(socket), milliseconds(200)).is_open());
      }
      EXPECT_EQ(sockets, 2);
    }
    group.barrier();
  });
}

TEST(ProcessGroupTest, BackendByName) {
  const at::Device cuda(at::kCUDA, 0);
  EXPECT_EQ(resolve_backend({}), "shared_memory");
  EXPECT_EQ(resolve_backend({.one_host = false}), "gloo");
  EXPECT_EQ(resolve_backend({.device = cuda}), "nccl");
  EXPECT_EQ(resolve_backend({.backend = "gloo"}), "gloo");
  EXPECT_EQ(resolve_backend({.backend = "gloo", .device = cuda}), "gloo");
  EXPECT_EQ(resolve_backend({.backend = "shared_memory"}), "shared_memory");

  expect_contains(message_of([] { resolve_backend({.backend = "glo"}); }),
                  "[config] there is no communication backend 'glo'; did you mean 'gloo'?; valid: auto, gloo, nccl");
  expect_contains(message_of([] { resolve_backend({.backend = "shared_memory", .one_host = false}); }),
                  "serves the ranks of one host; got several hosts");
  expect_contains(message_of([&] { resolve_backend({.backend = "shared_memory", .device = cuda}); }),
                  "serves the CPU; got cuda:0");
  EXPECT_THROW(resolve_backend({.backend = ""}), ConfigError);
}

TEST(ProcessGroupTest, NcclWithoutGpuIsRefused) {
  if (at::hasCUDA()) {
    EXPECT_NO_THROW(check_nccl_available());
    expect_contains(message_of([] { resolve_backend({.backend = "nccl"}); }), "serves cuda devices; got the CPU");
    return;
  }
  const auto store = make_thread_store(seconds(30));
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)})
    expect_contains(message_of([&] { make_process_group(store, {.backend = "nccl", .device = device}); }),
                    "[config] backend 'nccl' needs a ");
  expect_contains(message_of([&] { make_process_group(store, {.device = at::Device(at::kCUDA, 0)}); }),
                  "[config] backend 'nccl' needs a ");
}

TEST(ProcessGroupTest, GlooChoosesItsInterface) {
  expect_group_works({.backend = "gloo", .one_host = true});
  // As between hosts: through this host's own address.
  expect_group_works({.backend = "gloo", .one_host = false, .main_address = "127.0.0.1"});
  const ScopedVariable loopback("GLOO_SOCKET_IFNAME", "lo");
  expect_group_works({.backend = "gloo", .one_host = false});
}

TEST(ProcessGroupTest, UnknownInterfaceIsNamed) {
  const ScopedVariable unknown("GLOO_SOCKET_IFNAME", "nonesuch0");
  const auto store = make_thread_store(seconds(30));
  const std::string message = message_of([&] { make_process_group(store, {.backend = "gloo"}); });
  expect_contains(message, "[comm] GLOO_SOCKET_IFNAME names an interface that Gloo cannot use: ");
  expect_contains(message, "got 'nonesuch0'; valid: ");
}

TEST(ProcessGroupTest, RankThatDoesNotComeIsATimeOut) {
  const auto store = make_thread_store(milliseconds(500));
  const std::string message = message_of([&] {
    make_process_group(store, {.backend = "gloo", .rank = 1, .world_size = 2, .timeout = milliseconds(500)});
  });
  expect_contains(message, "[comm] rank 1 of 2 could not connect to the other ranks through Gloo within 0.5 s: ");
  expect_contains(message, "GLOO_SOCKET_IFNAME=INTERFACE");
}

TEST(ProcessGroupTest, FlightRecorderIsOff) {
  prepare_c10d_environment();
  const char* size = std::getenv("TORCH_FR_BUFFER_SIZE");
  ASSERT_NE(size, nullptr);
  EXPECT_STREQ(size, "0");
}

// Groups made by several threads at once crashed now and then while the flight recorder was on.
TEST(ProcessGroupTest, ManyGroupsInThreads) {
  run_ranks(RankKind::kThreads, 3, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const ProcessGroupOptions options{.backend = "gloo", .rank = rank, .world_size = 3};
    C10dCollective group(make_process_group(store, options), store, options);
    const std::vector<int64_t> all = {0, 1, 2};
    for (int i = 0; i < 20; ++i) {
      const auto inner = group.subgroup(all);
      at::Tensor tensor = at::full({10}, 1.0);
      inner->all_reduce(tensor, ReduceOp::kSum)->wait();
      EXPECT_EQ(tensor[0].item<double>(), 3.0);
      group.barrier();
    }
  });
}

class ProcessGroupGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device can be used here";
  }
};

TEST_F(ProcessGroupGpuTest, NcclInAGroupOfOne) {
  const auto store = make_thread_store(seconds(60));
  const ProcessGroupOptions options{.device = at::Device(at::kCUDA, 0)};
  C10dCollective group(make_process_group(store, options), store, options);
  const at::TensorOptions on_device = at::TensorOptions(options.device).dtype(at::kFloat);
  at::Tensor tensor = at::full({1000}, 3.0, on_device);
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax})
    group.all_reduce(tensor, op)->wait();
  group.broadcast(tensor, 0)->wait();
  at::Tensor gathered = at::empty({1000}, on_device);
  group.all_gather(gathered, tensor)->wait();
  at::Tensor part = at::empty({1000}, on_device);
  group.reduce_scatter(part, gathered, ReduceOp::kMean)->wait();
  EXPECT_TRUE(part.eq(3).all().item<bool>());
  // Tensors on the CPU and bytes go beside it.
  at::Tensor on_cpu = at::full({2}, 4.0);
  group.all_reduce(on_cpu, ReduceOp::kMean)->wait();
  EXPECT_EQ(on_cpu[1].item<double>(), 4.0);
  EXPECT_EQ(group.gather_bytes("bytes"), std::vector<std::string>{"bytes"});
  group.barrier();
  group.abort("the test is over");
  expect_contains(message_of([&] { group.all_reduce(tensor, ReduceOp::kSum); }), "the test is over");
}

TEST_F(ProcessGroupGpuTest, GlooLetsTwoRanksShareADevice) {
  const at::Device device(at::kCUDA, 0);
  expect_group_works({.backend = "gloo", .device = device});
  run_ranks(RankKind::kThreads, 2, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const ProcessGroupOptions options{.backend = "gloo", .device = device, .rank = rank, .world_size = 2};
    C10dCollective group(make_process_group(store, options), store, options);
    const at::TensorOptions on_device = at::TensorOptions(device).dtype(at::kFloat);
    at::Tensor tensor = at::full({4}, static_cast<double>(rank), on_device);
    group.broadcast(tensor, 1)->wait();
    EXPECT_TRUE(tensor.eq(1).all().item<bool>());
    at::Tensor all = at::empty({2}, on_device);
    group.all_gather(all, at::full({1}, static_cast<double>(rank), on_device))->wait();
    EXPECT_EQ(all[0].item<double>(), 0);
    EXPECT_EQ(all[1].item<double>(), 1);
    at::Tensor part = at::empty({2}, on_device);
    group.reduce_scatter(part, tensor, ReduceOp::kSum)->wait();
    EXPECT_TRUE(part.eq(2).all().item<bool>());
    if (rank == 0) group.send(part, 1, 4)->wait();
    at::Tensor received = at::empty({2}, on_device);
    if (rank == 1) {
      group.receive(received, 0, 4)->wait();
      EXPECT_TRUE(received.eq(2).all().item<bool>());
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace levin
