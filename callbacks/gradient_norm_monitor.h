#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/optim/parameter_names.h>

namespace levin {

/// Options of GradientNormMonitor, explained in describe().
struct GradientNormMonitorOptions {
  double norm = 2;
  bool per_parameter = false;

  static void describe(Schema<GradientNormMonitorOptions>& schema);
};

/// Logs the norm of the gradients before they are clipped, "grad_norm", and of each parameter's, "grad_norm/NAME", at
/// the steps that are logged anyway. With several optimizers the second one's are "grad_norm-1" and so on. Nothing
/// waits for the device.
class GradientNormMonitor final : public Callback {
 public:
  using Options = GradientNormMonitorOptions;

  explicit GradientNormMonitor(const Options& options = {});

  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_before_optimizer_step(Trainer& trainer, Module& module, OptimizerHandle& optimizer) override;

 private:
  const Options options_;
  optim::ParameterNames names_;  ///< under which each parameter's norm is logged
};

}  // namespace levin
