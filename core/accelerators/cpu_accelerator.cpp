#include <levin/core/accelerators/cpu_accelerator.h>

#include <levin/core/accelerators/cpu_graph_recorder.h>

namespace levin {

GraphSupport CpuAccelerator::make_graph_recorder(const at::Device&) const {
  return {.recorder = std::make_unique<CpuGraphRecorder>(), .why_not = ""};
}

}  // namespace levin
