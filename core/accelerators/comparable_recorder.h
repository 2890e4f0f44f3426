#pragma once

#include <levin/core/accelerators/graph_recorder.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace levin {

/// A recorder of work in memory that it can look at and put back, so that a replayed step can be compared with an
/// ordinary one. Records one step: the graphs that `record` gives inside of `record_step` are its parts, which lose
/// their meaning with the recorder.
class ComparableRecorder : public GraphRecorder {
 public:
  /// Records the parts of a step, by calling `record` for each in the order of replaying. Returns the tensors that are
  /// read outside of the graphs: they keep their memory, which each replay writes again.
  using Parts = std::function<std::vector<at::Tensor>()>;

  /// Records a step and takes it back: memory, version counters and random generators are as before. Throws what
  /// `parts` throws, and levin::Error, which names the operator, when the step cannot be replayed.
  virtual void record_step(const Parts& parts) = 0;
  /// Says who holds a result of the step beside the recording and `known`, which tensors are held by; empty when nobody
  /// does. A result that the module keeps for later would change with each replay.
  virtual std::string kept_result(const std::vector<at::Tensor>& known) const = 0;
  /// Takes an ordinary step, of the same parts, and replays the recorded one; both are taken back. Returns what they do
  /// differently, empty for nothing. Throws as record_step does.
  virtual std::string difference(const Parts& parts) = 0;
  /// Makes replays use the memory of `from` in the place of `input`, a tensor of the same layout that parts read; none
  /// where `from` is undefined.
  virtual void read_input_from(const at::Tensor& input, const at::Tensor& from) = 0;
  /// Gives a result other memory, so that who holds it keeps its value. Returns the tensor that replays write now.
  virtual at::Tensor renew(const at::Tensor& result) = 0;
};

}  // namespace levin
