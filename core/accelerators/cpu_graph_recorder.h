#pragma once

#include <levin/core/accelerators/comparable_recorder.h>

#include <memory>

namespace levin {

class OperatorPlan;
class OperatorRecording;

/// Recorder of a step's operators on the CPU.
class CpuGraphRecorder final : public ComparableRecorder {
 public:
  CpuGraphRecorder();
  ~CpuGraphRecorder() override;

  std::unique_ptr<RecordedGraph> record(const std::function<void()>& body) override;
  void record_step(const Parts& parts) override;
  std::string kept_result(const std::vector<at::Tensor>& known) const override;
  std::string difference(const Parts& parts) override;
  void read_input_from(const at::Tensor& input, const at::Tensor& from) override;
  at::Tensor renew(const at::Tensor& result) override;

 private:
  std::string difference(OperatorRecording& ordinary, const std::vector<at::Tensor>& results);

  std::unique_ptr<OperatorRecording> recording_;  ///< under way
  std::unique_ptr<OperatorPlan> plan_;
  std::vector<at::Tensor> kept_;
};

}  // namespace levin
