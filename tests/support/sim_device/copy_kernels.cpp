#include "tests/support/sim_device/copy_kernels.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/host_wait.h"
#include "tests/support/sim_device/kernel_launch.h"
#include "tests/support/sim_device/pinned_memory.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/streams.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <span>
#include <utility>

namespace levin::testing::sim {
namespace {

constexpr int kPendingByte = 0xCD;  // of host memory that a copy will fill

std::span<const char> bytes_of(const at::Tensor& host) {
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

Streams& streams() { return Streams::instance(); }

size_t current_stream_of(const at::Tensor& tensor) { return index_of(streams().current(tensor.device().index())); }

Recording* recording_of(const at::Tensor& tensor) {
  const std::lock_guard lock(Hardware::instance().mutex());
  return Recording::of_stream(current_stream_of(tensor));
}

/// Whether the bytes can go as they are, so that a device needs neither the host's help nor memory of its own.
bool is_plain(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
         to.is_non_overlapping_and_dense();
}

bool is_late(const at::Tensor& host, bool is_plain_copy, bool non_blocking) {
  return non_blocking && is_plain_copy && PinnedMemory::instance().contains(host.const_data_ptr());
}

void on_one_device(const at::Tensor& from, const at::Tensor& to) {
  KernelLaunch launch("copy_");
  const at::Tensor source = launch.read(from);
  at::Tensor target = launch.write(to);
  launch.start();
  target.copy_(source);
}

void between_devices(const at::Tensor& from, const at::Tensor& to) {
  const std::lock_guard lock(Hardware::instance().mutex());
  // As CUDA's: the current streams of both devices wait for each other, before and after.
  const size_t a = current_stream_of(from);
  const size_t b = current_stream_of(to);
  const auto join = [&] {
    streams().order_after(a, VectorClock(streams().clock(b)));
    streams().order_after(b, VectorClock(streams().clock(a)));
  };
  join();
  c10::DeviceGuard guard(from.device());
  KernelLaunch reading("copy between devices");
  const at::Tensor source = reading.read(from);
  reading.start();
  guard.set_index(to.device().index());
  KernelLaunch writing("copy between devices");
  at::Tensor target = writing.write(to);
  writing.start();
  target.copy_(source);
  join();
}

void to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const size_t stream = current_stream_of(from);
  const bool late = is_late(to, is_plain(from, to), non_blocking);
  if (!late) host_waits_for_stream(Wait::kCopyToHost, stream);
  at::Tensor taken;
  uint64_t work = 0;
  {
    KernelLaunch launch("copy to the host");
    const at::Tensor source = launch.read(from);
    launch.start();
    taken = source.clone();
    work = launch.work();
  }
  if (!late || Hardware::instance().options().copies == CopyTiming::kEarly) {
    at::Tensor(to).copy_(taken);
    if (!late) {
      const std::lock_guard lock(Hardware::instance().mutex());
      streams().host_learns(VectorClock(streams().clock(stream)));
    }
    return;
  }
  const std::lock_guard lock(Hardware::instance().mutex());
  streams().make_copies_of(bytes_of(to), VectorClock(streams().clock(stream)));
  std::memset(to.mutable_data_ptr(), kPendingByte, to.nbytes());
  streams().run_late(stream, work, bytes_of(to),
                     [taken, to] { std::memcpy(to.mutable_data_ptr(), taken.const_data_ptr(), taken.nbytes()); });
}

void from_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const size_t stream = current_stream_of(to);
  const bool late = is_late(from, is_plain(from, to), non_blocking);
  // Refused before anything is done.
  if (!late) host_waits(non_blocking ? Wait::kStagedCopy : Wait::kCopyFromHost, stream);
  KernelLaunch launch("copy from the host");
  const bool puts_off =
      late && Hardware::instance().options().copies == CopyTiming::kLate && Recording::of_stream(stream) == nullptr;
  if (puts_off) launch.keep_late_fills();
  at::Tensor target = launch.write(to);
  const VectorClock before = streams().clock(stream);
  launch.start();
  if (!puts_off) {
    streams().make_copies_of(bytes_of(from), before);
    target.copy_(from);
    if (!non_blocking) streams().host_learns(VectorClock(streams().clock(stream)));
    return;
  }
  Block* block = DeviceMemory::instance().find(to.storage().data());
  block->add_late_fill([bytes = target.mutable_data_ptr(), from, before] {
    streams().make_copies_of(bytes_of(from), before);
    std::memcpy(bytes, from.const_data_ptr(), from.nbytes());
  });
  streams().run_late(stream, launch.work(), bytes_of(from), [base = block->base(), serial = block->serial()] {
    Block* filled = DeviceMemory::instance().find(base);
    if (filled != nullptr && filled->serial() == serial) filled->run_late_fills();
  });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.numel() == 0) return to;
  const bool to_cpu = to.device().is_cpu();
  const bool from_cpu = from.device().is_cpu();
  Ledger::instance().add_copy(/*between_devices=*/!to_cpu && !from_cpu && to.device() != from.device());
  const at::Tensor& on_device = to_cpu ? from : to;
  std::function<void()> copy = [from, to, non_blocking, to_cpu, from_cpu] {
    // As CUDA's: it is no matter which device is the thread's current one.
    const c10::DeviceGuard device((to_cpu ? from : to).device());
    // Tensors of inference mode are copied to as others are.
    const c10::InferenceMode guard;
    if (to_cpu)
      to_host(from, to, non_blocking);
    else if (from_cpu)
      from_host(from, to, non_blocking);
    else if (from.device() != to.device())
      between_devices(from, to);
    else
      on_one_device(from, to);
  };
  Recording* recording = recording_of(on_device);
  if (recording == nullptr) {
    copy();
  } else if (to_cpu) {
    // The host's memory stays as it is until the replay.
    if (!is_late(to, is_plain(from, to), non_blocking)) host_waits(Wait::kCopyToHost, current_stream_of(from));
    recording->add(copy);
  } else {
    copy();
    recording->add(copy);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::Tensor(to).resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  host_waits_for_stream(Wait::kItem, current_stream_of(self));
  KernelLaunch launch("item");
  const at::Tensor value = launch.read(self);
  launch.start();
  streams().host_learns(VectorClock(streams().clock(launch.stream())));
  return value.item();
}

}  // namespace

void register_copy_kernels(torch::Library& operators) {
  operators.impl("_copy_from", copy_from);
  operators.impl("_copy_from_and_resize", copy_from_and_resize);
  operators.impl("_local_scalar_dense", local_scalar);
}

}  // namespace levin::testing::sim
