#include <levin/core/accelerators/cuda_graph_recorder.h>

#include <levin/build_info.h>

#if LEVIN_HAS_CUDA

#include <levin/core/base/log.h>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>
#include <string>

namespace levin {
namespace {

class CudaGraph final : public RecordedGraph, private at::cuda::CUDAGraph {
 public:
  void replay() override { CUDAGraph::replay(); }

  // Only this thread is held to what a recording allows: others (a loader's, a logger's) go on as they like.
  void begin(const c10::MempoolId_t& pool) { capture_begin(pool, cudaStreamCaptureModeThreadLocal); }
  void end() { capture_end(); }

  /// Undoes begin() after an error. LibTorch leaves a failed recording half open: its capture_end() throws at once.
  void abandon(c10::DeviceIndex device) {
    const c10::MempoolId_t pool = mempool_id_;
    attempt([&] { capture_end(); });
    if (capture_ended_) return;
    attempt([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool); });
    attempt([&] { c10::cuda::CUDACachingAllocator::releasePool(device, pool); });
    attempt([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool); });
    attempt([&] { at::getHostAllocator(at::kCUDA)->release_pool(pool); });
    // Else the next dropout would throw, as one outside of a recording.
    for (auto& [generator, increment] : captured_generator_states_) {
      generator->capturing_ = false;
      generator->offset_intragraph_ = 0;
    }
  }

 private:
  template <class Function>
  static void attempt(const Function& function) {
    try {
      function();
    } catch (const std::exception&) {
      // What was not begun cannot be ended; the error of the recording is the one that counts.
    }
  }
};

c10::cuda::CUDAStream make_stream(const c10::Device& device) {
  const c10::DeviceGuard guard(device);
  // What was given to the stream before must not run beside what is recorded.
  c10::cuda::device_synchronize();
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
}

}  // namespace

CudaGraphRecorder::CudaGraphRecorder(const c10::Device& device)
    : stream_(make_stream(device)), guard_(stream_.unwrap()), pool_(at::cuda::graph_pool_handle()) {}

CudaGraphRecorder::~CudaGraphRecorder() {
  // What runs next does so on another stream.
  try {
    stream_.synchronize();
  } catch (const std::exception& error) {
    log::warning(std::string("graph: ") + error.what());
  }
}

std::unique_ptr<RecordedGraph> CudaGraphRecorder::record(const std::function<void()>& body) {
  auto recorded = std::make_unique<CudaGraph>();
  recorded->begin(pool_);
  try {
    body();
    recorded->end();
  } catch (...) {
    recorded->abandon(stream_.device_index());
    throw;
  }
  return recorded;
}

}  // namespace levin

#endif
