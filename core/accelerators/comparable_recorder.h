#pragma once

#include <levin/core/accelerators/graph_recorder.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace levin {

/// A recorder of work in memory that it can look at and put back. It watches ordinary steps while they are really
/// taken: the first one is recorded, later ones are compared with it, by replaying each part beside and taking that
/// replay back. So recording and comparing never change a run.
///
/// A step has the same number of parts each time, which `watch` runs in order. What cannot be recorded is no error but
/// ends the watching; the step goes on as ever.
class ComparableRecorder : public GraphRecorder {
 public:
  /// Begins to watch a step of a batch. Returns what stands for the batch's tensors in it: the same memory, apart from
  /// whatever else reads it. `added_to`: tensors that the step changes in place and that are others in each step, each
  /// with memory of its own from its beginning on; the step works on themselves. `state`: parameters and buffers, whose
  /// values the step may not look at.
  virtual std::vector<at::Tensor> begin_step(const std::vector<at::Tensor>& batch,
                                             const std::vector<at::Tensor>& added_to,
                                             const std::vector<at::Tensor>& state) = 0;
  /// Runs the next part of the step.
  virtual void watch(const std::function<void()>& part) = 0;
  /// Called inside of a part: ends it there, runs `between`, which is none of the step, and begins the next part.
  virtual void interrupt(const std::function<void()>& between) = 0;
  /// Leaves a tensor of the first step out of what somebody holds, from now until note_let_go.
  virtual void leave_out(const at::Tensor& tensor) = 0;
  /// Notes what somebody other than hooks between the parts holds of the first step: its code has ended, and whatever
  /// is held was kept by it. Called after a part, when the graph of the step is gone.
  virtual void note_kept() = 0;
  /// Ends the step. `results`: tensors that are read outside of the parts, the same ones in each step; they keep their
  /// memory in replays. Returns what was done differently than in the recorded step, or why this one cannot be
  /// replayed; empty for nothing.
  virtual std::string end_step(const std::vector<at::Tensor>& results) = 0;
  /// Ends the step without recording or comparing it.
  virtual void abandon_step() = 0;
  /// Notes what of the first step was let go of since it ended, while what it gave out is still held.
  virtual void note_let_go() = 0;
  /// Returns what of the first step somebody holds beside this object and `known`, or what note_kept found, or what
  /// something outside of its parts let go of: "what aten::mul.Tensor gave" or "a tensor of the batch"; empty for
  /// nothing. The module would find the same there after each replay.
  virtual std::string held_result(const std::vector<at::Tensor>& known) const = 0;
  /// Makes the first step ready for replays, once nobody needs what it left behind. Returns why it cannot be replayed,
  /// empty for nothing.
  virtual std::string finish() = 0;

  // ---- When it is finished.

  /// The results of the recorded step, in memory that only replays write.
  virtual const std::vector<at::Tensor>& results() const = 0;
  /// Whether replays write a result, instead of giving what was there before.
  virtual bool is_made(const at::Tensor& result) const = 0;
  /// The part in which replays first write a result that they make.
  virtual size_t part_of(const at::Tensor& result) const = 0;
  /// Whether nobody beside this object refers any more to some of the memory that was there before the recorded step:
  /// the program has put other tensors in its place.
  virtual bool has_lost_memory() const = 0;
  /// Makes replays read this batch, of the recorded one's layout, and after it the tensors that the step adds to; none
  /// where it is empty.
  virtual void read(const std::vector<at::Tensor>& batch) = 0;
  virtual void replay(size_t part) = 0;
  /// Gives a result other memory, so that who holds it keeps its value. Returns the tensor that replays write now.
  virtual at::Tensor renew(size_t result) = 0;
};

}  // namespace levin
