#pragma once

#include <levin/core/accelerators/operator_trace.h>
#include <levin/core/accelerators/pointer_watch.h>
#include <levin/core/base/operator_interceptor.h>
#include <levin/core/base/recording.h>

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace at {
class RecordFunction;
struct ObserverContext;
}  // namespace at

namespace levin {

/// Records the operators that a thread calls, below autograd and autocast, while they run as ever. Memory that the step
/// lets go of is given back meanwhile, though the recording refers to it. What cannot be
/// replayed is noted and ends the recording, not the work: an operator that looks at values, whose results' shape
/// depends on them, whose tensors are not dense and on the CPU, of which nothing is known of what it changes; memory
/// that changes although no operator said that it would; a pointer that the program takes between operators to memory
/// of theirs (see PointerWatch).
///
/// The first recording of a process registers a kernel with LibTorch's dispatcher, which threads that do not record
/// never reach.
class OperatorRecording final : public RecordingObserver, private OperatorInterceptor {
 public:
  /// `inputs`: tensors of the batch, which are others in each step. `state`: parameters and buffers.
  explicit OperatorRecording(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& state = {});
  ~OperatorRecording() override;
  OperatorRecording(const OperatorRecording&) = delete;
  OperatorRecording& operator=(const OperatorRecording&) = delete;

  /// Record what this thread calls between them as the next part of the step.
  void begin_part();
  void end_part();
  /// Ends a part that threw.
  void abandon_part();
  /// Returns why the step cannot be replayed; empty when it can.
  const std::string& failure() const { return failure_; }

  OperatorTrace& trace() { return trace_; }
  const OperatorTrace& trace() const { return trace_; }

  /// How often each part changes a tensor that was there before.
  struct VersionBumps {
    c10::VariableVersion counter;
    uint32_t at_start = 0;  ///< of the part under way
    std::vector<uint32_t> of_parts;
  };
  const std::vector<VersionBumps>& versions() const { return versions_; }

  void do_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work) override;
  void refuse(const std::string& why) override;

 private:
  struct Scope;
  /// Memory that was there before the part under way.
  struct Former {
    size_t storage;
    size_t bytes;
    size_t hash;  ///< of what it held when the part first used it; 0 where it was written at once
    bool may_change = false;
  };

  static std::unique_ptr<at::ObserverContext> on_function(const at::RecordFunction& function);
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack) override;
  void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet after, torch::jit::Stack* stack);
  std::string why_not(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  /// `is_written`: the operator says that it changes the tensor.
  size_t note_argument(const at::Tensor& tensor, bool is_written = false);
  void note_write(const at::Tensor& tensor, OperatorCall& recorded);
  void watch(const at::Storage& storage);
  void watch_all();
  void watch_after(const OperatorCall& call);
  /// Ends the watch over memory; notes who took a pointer to it.
  void end_watch(const at::Storage& storage);
  void end_watches();
  void refuse_pointer(const c10::StorageImpl* storage);
  void look_for_silent_writes();
  void release_memory();

  OperatorTrace trace_;
  std::vector<Former> former_;
  std::vector<size_t> releasable_;  ///< storages of which only the step itself needs the memory
  size_t bytes_made_ = 0;           ///< since memory was last released
  std::vector<VersionBumps> versions_;
  std::vector<at::Storage> state_;
  std::vector<bool> settled_;  ///< by storage: it holds what an operator gave or has read
  std::unordered_map<c10::StorageImpl*, PointerWatch> watches_;
  bool in_operator_ = false;
  std::string failure_;
  std::unique_ptr<Scope> scope_;  ///< in which this thread's calls are recorded
};

}  // namespace levin
