#include <levin/core/accelerators/accelerator.h>

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace levin {

int64_t Accelerator::device_count() const {
  return c10::impl::hasDeviceGuardImpl(type_) ? c10::impl::VirtualGuardImpl(type_).deviceCount() : 0;
}

bool Accelerator::has_started() const {
  const int64_t count = device_count();
  if (count == 0) return false;
  try {
    const auto& hooks = at::globalContext().getAcceleratorHooksInterface(type_);
    for (int64_t index = 0; index < count; ++index)
      if (hooks.hasPrimaryContext(static_cast<c10::DeviceIndex>(index))) return true;
  } catch (const c10::Error&) {
    // A plug-in without these hooks.
  }
  return false;
}

std::string Accelerator::hint_for_none() const {
  return "accelerator: cpu, or check that the plug-in sees its devices";
}

std::string Accelerator::device_name(const at::Device& device) const {
  return at::DeviceTypeName(device.type(), /*lower_case=*/true);
}

std::optional<double> Accelerator::peak_tflops(const at::Device&, MatrixFormat) const { return {}; }

std::string Accelerator::lacks_type(const at::Device&, at::ScalarType) const { return ""; }

MemoryStats Accelerator::memory_stats(const at::Device& device) const {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  auto* allocator = at::getDeviceAllocator(type_);
  const auto stats = allocator->getDeviceStats(device.index());
  return {.allocated = stats.allocated_bytes[kAll].current,
          .peak = stats.allocated_bytes[kAll].peak,
          .reserved = stats.reserved_bytes[kAll].current,
          .total = static_cast<int64_t>(allocator->getMemoryInfo(device.index()).second)};
}

void Accelerator::restart_peak(const at::Device& device) const {
  at::getDeviceAllocator(type_)->resetPeakStats(device.index());
}

void Accelerator::release_cached_memory() const { at::getDeviceAllocator(type_)->emptyCache(); }

void Accelerator::synchronize(const at::Device& device) const {
  c10::impl::VirtualGuardImpl(type_).synchronizeDevice(device.index());
}

std::unique_ptr<CopyStream> Accelerator::make_copy_stream(const at::Device& device) const {
  return CopyStream::of(device);
}

GraphSupport Accelerator::make_graph_recorder(const at::Device& device) const {
  return {.recorder = nullptr, .why_not = fmt::format("the device is {}", device.str())};
}

std::string Accelerator::default_backend(bool) const { return "gloo"; }

}  // namespace levin
