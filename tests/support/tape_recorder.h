#pragma once

#include <levin/core/accelerators/graph_recorder.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace levin::testing {

/// What a CUDA graph is to a GPU, for the CPU: recording notes each operator that LibTorch is given, with the tensors
/// it reads and writes; replaying runs the operators again on those very tensors, and no other code. As with CUDA
/// graphs, recording leaves memory and random generators as they were, and code that looks at a value cannot be
/// recorded.
class TapeRecorder final : public GraphRecorder {
 public:
  TapeRecorder();
  std::unique_ptr<RecordedGraph> record(const std::function<void()>& body) override;

  /// Of all recorders of the process so far.
  static int64_t recorded();
  static int64_t replayed();
};

}  // namespace levin::testing
