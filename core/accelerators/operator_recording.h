#pragma once

#include <levin/core/accelerators/operator_trace.h>
#include <levin/core/base/state.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace levin {

/// Records the operators that a thread calls, below autograd and autocast, while they run as ever. Then all that they
/// did can be taken back: memory that was there before, version counters, the thread's random generator.
///
/// While a recording lives, no other one may record on its thread. The first of a process registers a kernel with
/// LibTorch's dispatcher, which threads that do not record never reach.
class OperatorRecording {
 public:
  OperatorRecording();
  ~OperatorRecording();
  OperatorRecording(const OperatorRecording&) = delete;
  OperatorRecording& operator=(const OperatorRecording&) = delete;

  /// Runs `part`, the next part of the step, and records it. Throws what `part` throws, and levin::Error, which names
  /// the operator, for one that cannot be replayed: it looks at values, its results' shape depends on them, its tensors
  /// are not dense and on the CPU, or nothing is known of what it changes.
  void record(const std::function<void()>& part);
  /// Ends the recording: notes what memory holds now. Throws levin::Error where memory has changed that no operator
  /// said it would.
  void finish();
  /// Takes back, as often as it is called, what was done since the recording began, by it or by a replay of it.
  void take_back();

  OperatorTrace& trace() { return trace_; }
  const OperatorTrace& trace() const { return trace_; }

  /// Returns the number of a storage that was there before and holds something else now than at finish(); nothing where
  /// all hold the same.
  std::optional<size_t> first_difference() const;
  /// Whether the random generator is where it was at finish().
  bool generator_is_same() const;

  /// How often each part has changed a tensor that was there before.
  struct VersionBumps {
    c10::VariableVersion counter;
    uint32_t before = 0;
    std::vector<uint32_t> after_parts;
  };
  const std::vector<VersionBumps>& versions() const { return versions_; }

 private:
  struct Bytes {
    size_t storage;
    size_t size;
    std::unique_ptr<char[]> before;
    std::unique_ptr<char[]> after;  ///< nullptr: as before
  };

  static void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack);
  void record_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work);
  size_t note_argument(const at::Tensor& tensor);
  void note_write(const at::Tensor& tensor, OperatorCall& recorded);

  OperatorTrace trace_;
  std::vector<Bytes> bytes_;  ///< of memory that was there before
  std::vector<VersionBumps> versions_;
  State generator_before_;
  State generator_after_;
};

}  // namespace levin
