#pragma once

#include <levin/core/nn/unit.h>

#include <torch/csrc/autograd/anomaly_mode.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>

namespace torch::nn {
class Module;
}

namespace levin {

/// Makes autograd's anomaly detection say, while it lives, in which unit the forward of an operation ran whose backward
/// failed or gave a NaN: a warning "SqrtBackward0 failed in backward; its forward ran in encoder.0 (Block)". Without
/// it, LibTorch prints a list of C++ functions.
class AnomalyUnits {
 public:
  /// The module outlives this object. No unit may be running.
  explicit AnomalyUnits(torch::nn::Module& module);
  ~AnomalyUnits();
  AnomalyUnits(const AnomalyUnits&) = delete;
  AnomalyUnits& operator=(const AnomalyUnits&) = delete;

  /// Makes what an operation that runs now on this thread remembers; nullptr while there are no AnomalyUnits.
  static std::unique_ptr<torch::autograd::AnomalyMetadata> make_metadata();

 private:
  class Hook final : public UnitHook {
   public:
    Hook(std::string name, Unit& unit) : name_(std::make_shared<const std::string>(std::move(name))), unit_(unit) {}
    void before_forward(UnitCall& call) override;
    void after_forward(UnitCall& call) override;
    Unit& unit() { return unit_; }

   private:
    std::shared_ptr<const std::string> name_;  ///< a graph may outlive the hook
    Unit& unit_;
  };

  std::deque<Hook> hooks_;
};

}  // namespace levin
