#include <levin/core/base/reusing_allocator.h>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

class ReusingAllocatorTest : public ::testing::Test {
 protected:
  /// Writes to all of a block, and returns where it is.
  void* touch(const c10::DataPtr& block, size_t bytes) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % c10::gAlignment, 0u);
    std::memset(block.get(), 1, bytes);
    return block.get();
  }

  ReusingAllocator allocator_;
};

TEST_F(ReusingAllocatorTest, TheBlockFreedLastComesFirst) {
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{1000}, size_t{401408}, ReusingAllocator::kMaxBlock}) {
    c10::DataPtr first = allocator_.allocate(bytes);
    c10::DataPtr second = allocator_.allocate(bytes);
    void* const of_first = touch(first, bytes);
    void* const of_second = touch(second, bytes);
    EXPECT_NE(of_first, of_second);
    first = {};
    second = {};
    c10::DataPtr third = allocator_.allocate(bytes);
    EXPECT_EQ(touch(third, bytes), of_second) << bytes;
    EXPECT_EQ(touch(allocator_.allocate(bytes), bytes), of_first) << bytes;
  }
}

TEST_F(ReusingAllocatorTest, BlocksInUseNeverOverlap) {
  std::mt19937 random(1);
  struct InUse {
    c10::DataPtr block;
    size_t bytes;
    unsigned char value;
  };
  std::vector<InUse> in_use;
  for (int i = 0; i < 20000; ++i) {
    if (in_use.size() < 40 || random() % 2 == 0) {
      const size_t bytes = 1 + random() % (size_t{1} << (1 + random() % 23));  // some of more than kMaxBlock
      const auto value = static_cast<unsigned char>(random());
      in_use.push_back({allocator_.allocate(bytes), bytes, value});
      static_cast<unsigned char*>(in_use.back().block.get())[0] = value;
      static_cast<unsigned char*>(in_use.back().block.get())[bytes - 1] = value;
    } else {
      std::swap(in_use[random() % in_use.size()], in_use.back());
      const auto* const bytes = static_cast<const unsigned char*>(in_use.back().block.get());
      ASSERT_EQ(bytes[0], in_use.back().value) << in_use.back().bytes;
      ASSERT_EQ(bytes[in_use.back().bytes - 1], in_use.back().value) << in_use.back().bytes;
      in_use.pop_back();
    }
  }
}

TEST_F(ReusingAllocatorTest, NoBytesAreNoBlock) {
  EXPECT_EQ(allocator_.allocate(0).get(), nullptr);
  c10::GetDefaultCPUAllocator()->raw_deleter()(nullptr);
  allocator_.raw_deleter()(nullptr);
}

TEST_F(ReusingAllocatorTest, ThreadsMayFreeBlocksOfEachOther) {
  std::vector<c10::DataPtr> blocks;
  std::thread([&] {
    for (int i = 0; i < 1000; ++i) blocks.push_back(allocator_.allocate(100000));
  }).join();
  blocks.clear();  // its thread has ended
  std::thread([&] {
    thread_local std::optional<c10::DataPtr> to_the_end;  // freed after what the thread keeps, or before
    to_the_end = allocator_.allocate(100);
    touch(*to_the_end, 100);
  }).join();
}

TEST_F(ReusingAllocatorTest, BlocksOfLibTorchsAllocatorMayBeFreedByIt) {
  for (const size_t bytes : {size_t{8}, size_t{5000}, 2 * ReusingAllocator::kMaxBlock}) {
    allocator_.raw_deallocate(c10::GetDefaultCPUAllocator()->raw_allocate(bytes));
    c10::GetDefaultCPUAllocator()->raw_deallocate(allocator_.raw_allocate(bytes));
  }
}

/// Last, for it lasts: oneDNN asks LibTorch's allocator for memory, and frees it by the one of that moment.
TEST_F(ReusingAllocatorTest, GivesTensorsTheirMemory) {
  const at::Tensor image = at::randn({2, 3, 16, 16});
  const at::Tensor weight = at::randn({8, 3, 3, 3});
  const at::Tensor before = at::conv2d(image, weight);
  ReusingAllocator::install();
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator())
    GTEST_SKIP() << "sanitizers are to notice uses of freed memory: install() does nothing";
  EXPECT_TRUE(at::conv2d(image, weight).equal(before));
  const void* const freed = at::randn({1000, 10}).data_ptr();
  EXPECT_EQ(at::randn({1000, 10}).data_ptr(), freed);
}

}  // namespace
}  // namespace levin
