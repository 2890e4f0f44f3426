#pragma once

#include <levin/core/accelerators/comparable_recorder.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin {

class OperatorPlan;
class OperatorRecording;

/// Recorder of a step's operators on the CPU.
class CpuGraphRecorder final : public ComparableRecorder {
 public:
  CpuGraphRecorder();
  ~CpuGraphRecorder() override;

  /// Throws levin::Error: steps are watched.
  std::unique_ptr<RecordedGraph> record(const std::function<void()>& body) override;
  std::vector<at::Tensor> begin_step(const std::vector<at::Tensor>& batch, const std::vector<at::Tensor>& added_to,
                                     const std::vector<at::Tensor>& state) override;
  void watch(const std::function<void()>& part) override;
  void interrupt(const std::function<void()>& between) override;
  void leave_out(const at::Tensor& tensor) override;
  void note_kept() override;
  std::string end_step(const std::vector<at::Tensor>& results) override;
  void abandon_step() override;
  void note_let_go() override;
  std::string held_result(const std::vector<at::Tensor>& known) const override;
  std::string finish() override;
  const std::vector<at::Tensor>& results() const override { return results_; }
  bool is_made(const at::Tensor& result) const override;
  size_t part_of(const at::Tensor& result) const override;
  bool has_lost_memory() const override;
  void read(const std::vector<at::Tensor>& batch) override;
  void replay(size_t part) override;
  at::Tensor renew(size_t result) override;

 private:
  class Memory;

  /// Counts the references to each storage that the first step made or that its batch has, beside this object's, those
  /// of tensors that are left out, and gradients in their place; 0 for other storages.
  std::vector<int64_t> holders() const;
  /// Counts what hooks between the parts took and let go of since the last part ended, and notes a result of which they
  /// let go more than they took.
  void look_for_let_go();
  void begin_part();
  void end_part();
  /// Replays a part that an ordinary step has just run, compares what both did, and takes the replay back. `memory`: as
  /// it was before the part; what becomes of it does not matter.
  std::string compare(size_t part, Memory& memory);

  std::unique_ptr<OperatorRecording> recording_;  ///< of the step under way, or of the first one until it is finished
  std::unique_ptr<OperatorPlan> plan_;
  std::vector<at::Tensor> results_;
  std::unique_ptr<Memory> before_;  ///< the part under way, where it is to be compared
  std::string difference_;
  // Of the first step:
  std::vector<at::Tensor> inputs_;  ///< what stands for its batch, until it has ended
  std::vector<at::Tensor> state_;   ///< parameters and buffers
  std::vector<at::Tensor> left_out_;
  // References to a storage, as `holders` counts them. What is kept: those now, less what hooks took and the caller
  // had.
  std::vector<int64_t> callers_;      ///< when the step began, to its batch
  std::vector<int64_t> at_part_end_;  ///< when the last part ended
  std::vector<int64_t> taken_;        ///< by hooks between the parts
  std::string kept_;                  ///< what is kept past the step; empty: nothing
  size_t batch_size_ = 0;             ///< tensors of the step's batch
};

}  // namespace levin
