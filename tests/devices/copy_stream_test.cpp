#include <levin/core/accelerators/copy_stream.h>

#include <levin/core/accelerators/accelerator_registry.h>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

// ---- A device that computes nothing: its memory is the host's, and it writes down what its streams are given.

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

struct Journal {
  std::vector<std::string> lines;
  c10::StreamId current_stream = 0;
  void add(const std::string& line, c10::StreamId stream) {
    lines.push_back(line + " on " + (stream == 0 ? "home" : stream == kSide ? "side" : "another"));
  }
  static constexpr c10::StreamId kSide = 3;
};

Journal& journal() {
  static Journal journal;
  return journal;
}

class JournalGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  [[maybe_unused]] static constexpr c10::DeviceType static_type = kDevice;
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(journal().current_stream); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(Journal::kSide); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(journal().current_stream, next.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    *event = &journal();
    journal().add("record", stream.id());
  }
  void block(void*, const c10::Stream& stream) const override { journal().add("wait", stream.id()); }

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, {kDevice, 0}, id); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, JournalGuard)

class HostMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    journal().add("allocate", journal().current_stream);
    void* data = std::malloc(bytes);
    return {data, data, &std::free, {kDevice, 0}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  static HostMemory memory;
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), *type);
}

/// To and from the host, of tensors that are in memory alike.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  EXPECT_EQ(from.strides(), to.strides());
  journal().add("copy", journal().current_stream);
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  return to;
}

void record_stream(at::Tensor&, at::Stream stream) { journal().add("hold memory for use", stream.id()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("record_stream", record_stream);
}

using Lines = std::vector<std::string>;

class CopyStreamTest : public ::testing::Test {
 protected:
  const std::unique_ptr<CopyStream> stream_ = CopyStream::of(at::Device(kDevice, 0));
  Lines lines() { return std::exchange(journal().lines, {}); }
  static at::Tensor on_host(const at::Tensor& tensor) {
    at::Tensor host = at::empty_like(tensor, at::TensorOptions().device(at::kCPU));
    std::memcpy(host.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
    return host;
  }
};

TEST_F(CopyStreamTest, CopiesBesideTheCurrentStream) {
  ASSERT_NE(stream_, nullptr);
  const at::Tensor x = at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor y = at::arange(2);
  const auto copies = stream_->copy({x, y});
  // The memory is that of the current stream: the side stream waits until what was there is done with.
  EXPECT_EQ(lines(), (Lines{"allocate on home", "allocate on home", "record on home", "wait on side", "copy on side",
                            "copy on side", "record on side"}));
  EXPECT_EQ(journal().current_stream, 0);
  stream_->wait(copies[0]);
  EXPECT_EQ(lines(), Lines{"wait on home"});
  ASSERT_EQ(copies.size(), 2u);
  for (const at::Tensor& copy : copies) EXPECT_EQ(copy.device(), at::Device(kDevice, 0));
  EXPECT_TRUE(on_host(copies[0]).equal(x));
  EXPECT_TRUE(copies[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(copies[1].scalar_type(), at::kLong);
  EXPECT_TRUE(on_host(copies[1]).equal(y));
}

TEST_F(CopyStreamTest, HoldsTheMemoryForAnotherStreamThatUsesIt) {
  const auto copies = stream_->copy({at::ones({2})});
  lines();
  const c10::StreamGuard another(c10::Stream(c10::Stream::UNSAFE, {kDevice, 0}, 5));
  stream_->wait(copies[0]);
  EXPECT_EQ(lines(), (Lines{"wait on another", "hold memory for use on another"}));
}

TEST_F(CopyStreamTest, TakesPageLockedMemoryOnly) {
  EXPECT_FALSE(stream_->can_copy(at::ones({2})));
  EXPECT_EQ(CopyStream::of(at::Device(at::kCPU)), nullptr);
}

}  // namespace
}  // namespace levin
