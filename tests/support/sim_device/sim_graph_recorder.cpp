#include "tests/support/sim_device/sim_graph_recorder.h"

#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/streams.h"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>

namespace levin::testing::sim {
namespace {

class SimGraph final : public RecordedGraph {
 public:
  explicit SimGraph(RecordedWork work) : work_(std::move(work)) {}
  void replay() override {
    const at::NoGradGuard no_grad;
    for (const auto& kernel : work_) kernel();
  }

 private:
  const RecordedWork work_;
};

}  // namespace

SimGraphRecorder::SimGraphRecorder(const at::Device& device)
    : before_(Streams::instance().current(device.index())),
      stream_(Streams::instance().from_pool(device.index())),
      guard_(stream_) {
  before_.synchronize();
}

SimGraphRecorder::~SimGraphRecorder() {
  try {
    stream_.synchronize();
  } catch (const std::exception&) {
    // A device that was lost has nothing left to wait for.
  }
}

std::unique_ptr<RecordedGraph> SimGraphRecorder::record(const std::function<void()>& body) {
  Recording recording(stream_);
  body();
  return std::make_unique<SimGraph>(recording.end());
}

}  // namespace levin::testing::sim
