#include <levin/core/devices/accounting_allocator.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace levin {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

at::Tensor megabytes(int64_t count) { return at::empty({count * kMegabyte}, at::kByte); }

class AccountingAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override { AccountingAllocator::install(); }
};

TEST_F(AccountingAllocatorTest, InUseAndPeak) {
  MemoryAccount& account = AccountingAllocator::of_this_thread();
  const int64_t before = account.in_use();
  const at::Tensor kept = megabytes(3);
  EXPECT_EQ(account.in_use() - before, 3 * kMegabyte);
  EXPECT_EQ(account.peak_of([] {
    megabytes(5);
    const at::Tensor two = megabytes(2);
    const at::Tensor four = megabytes(4);
  }),
            6 * kMegabyte);
  EXPECT_EQ(account.in_use() - before, 3 * kMegabyte);
  EXPECT_EQ(account.peak() - before, 9 * kMegabyte);
  account.restart_peak();
  EXPECT_EQ(account.peak(), account.in_use());
  // What the memory is for: 64 bytes' alignment, and every element can be written.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.data_ptr()) % c10::gAlignment, 0u);
  EXPECT_EQ(at::ones({1000}).sum().item<float>(), 1000);
}

TEST_F(AccountingAllocatorTest, EachThreadHasItsAccount) {
  MemoryAccount& own = AccountingAllocator::of_this_thread();
  MemoryAccount& all = AccountingAllocator::of_all_threads();
  const int64_t own_before = own.in_use();
  const int64_t all_before = all.in_use();
  std::vector<at::Tensor> kept(2);
  std::vector<MemoryAccount*> accounts(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      accounts[rank] = &AccountingAllocator::of_this_thread();
      megabytes(8);
      kept[rank] = megabytes(rank + 1);
    });
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(accounts[rank]->in_use(), (rank + 1) * kMegabyte);
    EXPECT_EQ(accounts[rank]->peak(), 8 * kMegabyte);
  }
  EXPECT_EQ(own.in_use(), own_before);
  EXPECT_EQ(all.in_use() - all_before, 3 * kMegabyte);
  kept.clear();  // here, what the other threads asked for
  for (const MemoryAccount* account : accounts) EXPECT_EQ(account->in_use(), 0);
  EXPECT_EQ(own.in_use(), own_before);
  EXPECT_EQ(all.in_use(), all_before);
}

}  // namespace
}  // namespace levin
