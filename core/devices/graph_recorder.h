#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

namespace levin {

/// Work of a device that can be done again, on the same memory, by one call.
class RecordedGraph {
 public:
  virtual ~RecordedGraph() = default;
  virtual void replay() = 0;
};

/// Records what a device is given to do, instead of having it done. Its graphs share memory: they are to be replayed in
/// the order in which they were recorded. Used, and destroyed, on the thread that made it, after its graphs.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  /// Runs `body` and records what it gives to the device. Throws what `body` throws, and where the device cannot record
  /// something; then nothing has been done.
  virtual std::unique_ptr<RecordedGraph> record(const std::function<void()>& body) = 0;
};

/// Either a recorder, or why there is none.
struct GraphSupport {
  std::unique_ptr<GraphRecorder> recorder;
  std::string why_not;
};

/// For CUDA devices; none for others.
GraphSupport make_graph_recorder(const c10::Device& device);

}  // namespace levin
