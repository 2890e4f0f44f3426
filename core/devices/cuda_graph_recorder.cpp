#include <levin/core/devices/cuda_graph_recorder.h>

#include <levin/build_info.h>

#if LEVIN_HAS_CUDA

#include <levin/core/base/log.h>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>
#include <string>

namespace levin {
namespace {

class CudaGraph final : public RecordedGraph {
 public:
  at::cuda::CUDAGraph& graph() { return graph_; }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

/// LibTorch leaves a failed recording half open.
void abandon(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, const c10::MempoolId_t& pool) {
  try {
    graph.capture_end();
  } catch (const std::exception&) {
    // Invalid, which is why it is abandoned: but then LibTorch still takes memory from the graphs' pool.
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
    } catch (const std::exception& error) {
      log::warning(std::string("cuda_graph: memory of a failed recording stays in use: ") + error.what());
    }
  }
}

}  // namespace

CudaGraphRecorder::CudaGraphRecorder(const c10::Device& device)
    : stream_(
          (c10::cuda::device_synchronize(), c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()))),
      guard_(stream_.unwrap()),
      pool_(at::cuda::graph_pool_handle()) {}

CudaGraphRecorder::~CudaGraphRecorder() {
  // What runs next does so on another stream.
  try {
    stream_.synchronize();
  } catch (const std::exception& error) {
    log::warning(std::string("cuda_graph: ") + error.what());
  }
}

std::unique_ptr<RecordedGraph> CudaGraphRecorder::record(const std::function<void()>& body) {
  auto recorded = std::make_unique<CudaGraph>();
  // Only this thread is held to what a recording allows: others (a loader's, a logger's) go on as they like.
  recorded->graph().capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  try {
    body();
    recorded->graph().capture_end();
  } catch (...) {
    abandon(recorded->graph(), stream_.device_index(), pool_);
    throw;
  }
  return recorded;
}

}  // namespace levin

#endif
