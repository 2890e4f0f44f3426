#pragma once

#include <levin/core/accelerators/operator_recording.h>
#include <levin/core/accelerators/operator_trace.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin {

/// Calls of a recorded step, ready to be run again on fixed memory by the CPU's kernels alone.
///
/// Views are dropped, since their tensors exist. A call writes its results where the recorded one left them: in place,
/// through the operator's out= form where that has a kernel of its own, else by taking over the memory of the new
/// results. Memory of results that one out= or in-place call after the other writes is shared between those that are
/// not needed at the same time.
class OperatorPlan {
 public:
  /// Takes the trace of a recording that is finished. `kept`: results that are read outside of replays. Throws
  /// levin::Error where a call cannot be run again.
  OperatorPlan(OperatorRecording& recording, const std::vector<at::Tensor>& kept);
  ~OperatorPlan();

  void replay(size_t part);
  size_t parts() const { return trace_.part_ends.size(); }
  /// Whether replays use an input.
  bool reads(size_t input) const { return reads_[input]; }

  /// Replays a part and returns the first call after which a result differs from that in another recording of the same
  /// step; empty where none does.
  std::string replay_beside(const OperatorTrace& other, size_t part);
  /// Returns the storages that were there before and that a part writes.
  const std::vector<size_t>& writes_of(size_t part) const { return part_writes_[part]; }
  std::vector<OperatorRecording::VersionBumps>& versions() { return versions_; }
  /// Whether only plans of this thread still refer to some of the memory that the step did not make, or to a generator
  /// that operators were given.
  bool has_lost_memory() const;
  /// Names the call that wrote a storage last.
  std::string writer_of(size_t storage) const;
  /// Returns whether values that the host wrote into new tensors of a part are those of another recording of the same
  /// step.
  bool has_constants_of(const OperatorTrace& other, size_t part) const;
  /// Gives a storage memory of its own, that is as the former's.
  void renew(size_t storage);
  /// Gives up the out= form of operators that, in the replay before, put other memory in the place of their result's.
  void settle();

  const OperatorTrace& trace() const { return trace_; }
  /// Bytes of the memory that results share.
  size_t arena_bytes() const { return arena_bytes_; }

 private:
  enum class Kind {
    kDropped,  ///< nothing to be done again: a view, memory to be written, a constant
    kInPlace,  ///< changes arguments
    kOut,      ///< writes its results through the out= form
    kNew,      ///< makes new results, whose memory the recorded ones take over
    kHostWork,
  };
  struct Step {
    size_t call;
    Kind kind;
    std::optional<c10::OperatorHandle> op;
    c10::DispatchKeySet keys;
    torch::jit::Stack arguments;
    std::vector<size_t> releases;  ///< storages not needed after it
  };
  struct Use {
    size_t first;
    size_t last;
  };
  /// References of the plans of a thread to memory and generators that others made.
  using References = std::unordered_map<const void*, size_t>;
  /// What others made, with how often plans refer to it.
  template <class T>
  struct Former {
    T used;
    const void* key;  ///< in References; `used` may have been given other memory since
    size_t own;       ///< references of this plan
    const size_t* of_plans;
  };

  std::vector<Kind> classify();
  void plan_memory();
  void note_former();
  void run(const Step& step);
  void release_after(const Step& step);
  void advance_versions(size_t part);
  void take_over(const at::Tensor& recorded, const at::Tensor& made) const;
  void enter(const OperatorCall& call);
  bool is_overwritten_first(size_t storage, size_t maker) const;

  OperatorTrace trace_;
  std::vector<OperatorRecording::VersionBumps> versions_;
  std::vector<bool> kept_;   ///< by storage
  std::vector<bool> reads_;  ///< by input
  std::vector<size_t> constants_;
  std::shared_ptr<References> references_;
  std::vector<Former<size_t>> former_;  ///< storages that were there before the step, the batch's excepted
  std::vector<Former<at::Generator*>> generators_;
  std::vector<Step> steps_;
  std::vector<size_t> step_ends_;  ///< of each part
  std::vector<std::vector<size_t>> part_writes_;
  at::DataPtr arena_;
  std::vector<std::pair<size_t, const void*>> places_;  ///< in the arena, by storage
  size_t arena_bytes_ = 0;
  torch::jit::Stack stack_;
};

}  // namespace levin
