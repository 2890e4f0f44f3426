#pragma once

#include <functional>
#include <memory>
#include <string>

namespace levin {

/// Recorded work of a device, replayed on the same memory by one call.
class RecordedGraph {
 public:
  virtual ~RecordedGraph() = default;
  virtual void replay() = 0;
};

/// Records the work given to a device instead of running it. Its graphs share memory and must be replayed in the order
/// of recording. Used on the thread that made it, and destroyed there after its graphs.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  /// Runs `body` and records the work that it gives to the device. Throws what `body` throws, and when the device
  /// cannot record some of it; the device has then done nothing.
  virtual std::unique_ptr<RecordedGraph> record(const std::function<void()>& body) = 0;
};

/// A recorder, or the reason why there is none.
struct GraphSupport {
  std::unique_ptr<GraphRecorder> recorder;
  std::string why_not;
};

}  // namespace levin
