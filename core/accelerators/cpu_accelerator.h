#pragma once

#include <levin/core/accelerators/accelerator.h>

namespace levin {

/// The processor: one device, whose memory is the process's.
class CpuAccelerator final : public Accelerator {
 public:
  CpuAccelerator() : Accelerator("cpu", at::kCPU) {}

  int64_t device_count() const override { return 1; }
  bool has_started() const override { return false; }
  MemoryStats memory_stats(const at::Device&) const override { return process_memory_stats(); }
  void restart_peak(const at::Device&) const override {}
  void release_cached_memory() const override {}
  bool uses_pinned_memory() const override { return false; }
  void synchronize(const at::Device&) const override {}
  std::unique_ptr<CopyStream> make_copy_stream(const at::Device&) const override { return nullptr; }
  GraphSupport make_graph_recorder(const at::Device& device) const override;
  std::string default_backend(bool one_host) const override { return one_host ? "shared_memory" : "gloo"; }
};

}  // namespace levin
