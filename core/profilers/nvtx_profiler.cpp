#include <levin/core/profilers/nvtx_profiler.h>

#include <levin/core/base/log.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <array>

namespace levin {
namespace {

namespace kineto = torch::autograd::profiler;

}  // namespace

void NvtxProfilerOptions::describe(Schema<NvtxProfilerOptions>& schema) {
  schema.field("units", &NvtxProfilerOptions::units, "add a range for the forward of each unit");
  schema.field("operators", &NvtxProfilerOptions::operators, "a range for each of LibTorch's operators");
}

void NvtxProfiler::start(const ProfiledCall& call) {
  nvtx_ = torch::profiler::impl::cudaStubs();
  step_ = 0;
  if (!nvtx_->enabled()) {
    nvtx_ = nullptr;
    log::rank_zero_warning_once(
        "profiler nvtx does nothing: this LibTorch was built without CUDA; hint: the profilers simple and pytorch do "
        "without");
    return;
  }
  log::rank_zero_info_once(
      "profiler nvtx: ranges are recorded under Nsight Systems: nsys profile --trace=cuda,nvtx,osrt --output=report "
      "PROGRAM ARGUMENTS");
  if (!options_.operators) return;
  try {
    kineto::enableProfiler(kineto::ProfilerConfig(kineto::ProfilerState::NVTX), {});
    marks_operators_ = true;
  } catch (const std::exception& error) {
    log::warning(fmt::format("profiler nvtx marks no operators: {}", error.what()));
  }
}

void NvtxProfiler::on_model_ready(torch::nn::Module& module) {
  if (nvtx_ == nullptr || !options_.units) return;
  units_.find(module);
  units_.attach();
}

void NvtxProfiler::step() {
  if (nvtx_ == nullptr) return;
  // A mark, because spans of an epoch go on through it and ranges must not overlap.
  std::array<char, 32> name;
  *fmt::format_to_n(name.data(), name.size() - 1, "step {}", step_++).out = '\0';
  nvtx_->mark(name.data());
}

void NvtxProfiler::begin(const char* name) {
  if (nvtx_ != nullptr) nvtx_->rangePush(name);
}

void NvtxProfiler::end(const char* /*name*/) {
  if (nvtx_ != nullptr) nvtx_->rangePop();
}

void NvtxProfiler::finish() {
  units_.detach();
  if (std::exchange(marks_operators_, false)) {
    try {
      kineto::disableProfiler();
    } catch (const std::exception& error) {
      log::warning(fmt::format("profiler nvtx: {}", error.what()));
    }
  }
  nvtx_ = nullptr;
}

}  // namespace levin
