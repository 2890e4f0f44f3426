#pragma once

#include <levin/core/precision/grad_scaler.h>
#include <levin/core/precision/true_precision.h>

#include <optional>
#include <vector>

namespace levin {

/// Parameters, gradients and optimizer in single precision; forward in 16 bits where that is safe, as LibTorch's
/// autocast decides operation by operation.
class MixedPrecision : public TruePrecision {
 public:
  /// `type`: kHalf, which needs `scaling` for its small range, or kBFloat16, which has the range of float and needs
  /// none.
  MixedPrecision(at::ScalarType type, std::optional<GradScalerOptions> scaling);

  /// Returns "16-mixed" or "bf16-mixed".
  std::string name() const override;
  bool is_half() const override { return true; }
  std::optional<at::ScalarType> mixed_type() const override { return type_; }
  bool scales_loss() const override { return scaler_.has_value(); }
  void set_up(const at::Device& device) override;
  ForwardSettings enter_forward() override;
  void exit_forward(const ForwardSettings& before) override;
  at::Tensor scale_loss(const at::Tensor& loss) override;
  StepScaling unscale(torch::optim::Optimizer& optimizer) override;
  void note_step(const torch::optim::Optimizer& optimizer) override;
  void restore_scale(torch::optim::Optimizer& optimizer, bool stepped) override;
  void abandon_window() override;
  void note_waiting(torch::optim::Optimizer& optimizer) override;
  void end_window() override;
  int64_t take_skipped_steps(bool wait) override;

  const std::optional<GradScaler>& scaler() const { return scaler_; }

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  void warn_of_skipped_steps(int64_t in_a_row);

  at::ScalarType type_;
  at::DeviceType device_type_ = at::kCPU;
  std::optional<GradScaler> scaler_;
  struct Unscaled {
    const torch::optim::Optimizer* optimizer;
    at::Tensor found_inf;
    bool stepped = false;  ///< the optimizer's next gradients have a scale again
  };
  /// Of gradients that no step has used yet.
  std::vector<Unscaled>::iterator find_unscaled(const torch::optim::Optimizer& optimizer);
  std::vector<Unscaled> unscaled_;              ///< of the window under way, one for each step
  std::vector<at::Tensor> waiting_parameters_;  ///< whose gradients wait for a later window
  int64_t skipped_told_ = 0;
  int64_t next_warning_;
};

/// "16-mixed" under its name in YAML.
class Float16MixedPrecision : public MixedPrecision {
 public:
  using Options = GradScalerOptions;
  explicit Float16MixedPrecision(const Options& options = {}) : MixedPrecision(at::kHalf, options) {}
};

/// "bf16-mixed" under its name in YAML.
class BFloat16MixedPrecision : public MixedPrecision {
 public:
  BFloat16MixedPrecision() : MixedPrecision(at::kBFloat16, std::nullopt) {}
};

}  // namespace levin
