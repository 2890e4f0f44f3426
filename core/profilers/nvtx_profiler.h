#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/profilers/unit_spans.h>

#include <cstdint>

namespace torch::profiler::impl {
struct ProfilerStubs;
}

namespace levin {

/// Options of NvtxProfiler, explained in describe().
struct NvtxProfilerOptions {
  bool units = true;
  bool operators = false;
  static void describe(Schema<NvtxProfilerOptions>& schema);
};

/// Marks hooks, phases, units and steps with NVTX ranges, which NVIDIA Nsight Systems shows above the kernels:
///
///     nsys profile --trace=cuda,nvtx,osrt --output=report PROGRAM fit --trainer.profiler=nvtx
///
/// Outside of nsys a range costs next to nothing. With a LibTorch that was built without CUDA it warns and does
/// nothing.
class NvtxProfiler final : public Profiler {
 public:
  using Options = NvtxProfilerOptions;
  explicit NvtxProfiler(const Options& options = {}) : options_(options) {}

  void start(const ProfiledCall& call) override;
  void on_model_ready(torch::nn::Module& module) override;
  void step() override;
  void begin(const char* name) override;
  void end(const char* name) override;
  void finish() override;

 private:
  const Options options_;
  const torch::profiler::impl::ProfilerStubs* nvtx_ = nullptr;  ///< nullptr: off
  bool marks_operators_ = false;
  int64_t step_ = 0;
  UnitSpans units_{*this};
};

}  // namespace levin
