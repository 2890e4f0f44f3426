#include <levin/core/devices/graph_recorder.h>

#include <levin/build_info.h>

#include <fmt/format.h>

#if LEVIN_HAS_CUDA
#include <levin/core/devices/cuda_graph_recorder.h>
#endif

namespace levin {

GraphSupport make_graph_recorder(const c10::Device& device) {
  if (!device.is_cuda()) return {.recorder = nullptr, .why_not = fmt::format("the device is {}", device.str())};
#if LEVIN_HAS_CUDA
  return {.recorder = std::make_unique<CudaGraphRecorder>(device), .why_not = ""};
#else
  return {.recorder = nullptr, .why_not = "this Levin was built without CUDA"};
#endif
}

}  // namespace levin
