#pragma once

#include <levin/core/optim/scheduler.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin::optim {

/// Options of OneCycleScheduler, with the names and defaults of torch.optim.lr_scheduler.OneCycleLR.
struct OneCycleOptions {
  std::optional<double> max_lr = {};
  std::optional<int64_t> total_steps = {};
  double pct_start = 0.3;
  std::string anneal_strategy = "cos";
  bool cycle_momentum = true;  ///< momentum (or the first beta) falls while the learning rate rises
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;

  static void describe(Schema<OneCycleOptions>& schema);
};

/// One rise and one fall over the whole run (Smith and Topin, 2018, arXiv:1708.07120). A step beyond `total_steps`
/// throws levin::Error.
class OneCycleScheduler final : public StepwiseScheduler {
 public:
  using Options = OneCycleOptions;
  explicit OneCycleScheduler(const Options& options);
  void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) override;

 protected:
  void on_count_changed() override;
  double first_lr(size_t group, double current) const override { return next_lr(group, current); }
  double next_lr(size_t group, double current) const override;
  void on_lrs_set() override;

 private:
  struct Phase {
    double end_step;                    ///< fractional, as PyTorch has it
    std::array<double, 2> lr_divisors;  ///< of the peak, at the phase's start and end
    std::array<double, 2> momenta;
  };

  double interpolated(double start, double end, double share) const;
  void find_phase();

  Options options_;
  int64_t total_steps_ = 1;
  std::vector<Phase> phases_;
  const Phase* phase_ = nullptr;  ///< of the present step
  double share_ = 0;              ///< of that phase
};

}  // namespace levin::optim
