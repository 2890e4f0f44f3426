#pragma once

#include <levin/core/accelerators/graph_recorder.h>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace levin::testing::sim {

/// Recorder of graphs of a simulated device. During its lifetime the thread works on a stream of its own, because the
/// default stream cannot be recorded.
class SimGraphRecorder final : public GraphRecorder {
 public:
  explicit SimGraphRecorder(const at::Device& device);
  ~SimGraphRecorder() override;
  std::unique_ptr<RecordedGraph> record(const std::function<void()>& body) override;

 private:
  const c10::Stream before_;
  const c10::Stream stream_;
  const c10::StreamGuard guard_;
};

}  // namespace levin::testing::sim
