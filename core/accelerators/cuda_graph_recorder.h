#pragma once

#include <levin/core/accelerators/graph_recorder.h>

#include <c10/core/Allocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

namespace levin {

/// Recorder of CUDA graphs. During its lifetime the thread works on a stream of its own, because the default stream
/// cannot be recorded.
class CudaGraphRecorder final : public GraphRecorder {
 public:
  explicit CudaGraphRecorder(const c10::Device& device);
  ~CudaGraphRecorder() override;
  std::unique_ptr<RecordedGraph> record(const std::function<void()>& body) override;

 private:
  c10::cuda::CUDAStream stream_;
  c10::StreamGuard guard_;
  std::pair<c10::CaptureId_t, c10::CaptureId_t> pool_;  ///< the memory that the graphs share
};

}  // namespace levin
