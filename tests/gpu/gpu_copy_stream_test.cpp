#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/accelerators/copy_stream.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(GpuCopyStream, CopiesWhatThePinnedMemoryHolds) {
  if (accelerator_of(at::kCUDA).device_count() == 0) GTEST_SKIP() << "no CUDA device can be used here";
  const at::Device device(at::kCUDA, 0);
  const auto stream = CopyStream::of(device);
  const at::Tensor pageable = at::rand({1 << 22});
  const at::Tensor x = pageable.pin_memory();
  EXPECT_FALSE(stream->can_copy(pageable));
  EXPECT_FALSE(stream->can_copy(x.slice(0, 0, 8, 2)));
  ASSERT_TRUE(stream->can_copy(x));
  // Memory that the current stream still reads is given to the copy, which has to wait.
  at::Tensor busy = at::ones({1 << 22}, device);
  for (int i = 0; i < 50; ++i) busy = busy.mul(1.0);
  const at::Tensor kept = busy.clone();
  busy.reset();
  const auto copies = stream->copy({x});
  at::Tensor work = at::zeros({1 << 22}, device);
  for (int i = 0; i < 50; ++i) work.add_(1);
  stream->wait(copies[0]);
  EXPECT_TRUE(copies[0].cpu().equal(pageable));
  EXPECT_TRUE(kept.cpu().equal(at::ones({1 << 22})));
}

}  // namespace
}  // namespace levin
