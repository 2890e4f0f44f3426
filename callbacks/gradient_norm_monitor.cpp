#include <levin/callbacks/gradient_norm_monitor.h>

#include <levin/core/base/gradient_groups.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

namespace levin {

void GradientNormMonitorOptions::describe(Schema<GradientNormMonitorOptions>& schema) {
  schema.field("norm", &GradientNormMonitorOptions::norm, "norm: 1, 2 or inf").require("1, 2 or inf", [](double p) {
    return p == 1 || p == 2 || p == std::numeric_limits<double>::infinity();
  });
  schema.field("per_parameter", &GradientNormMonitorOptions::per_parameter,
               "also log the norm of every parameter's gradient");
}

GradientNormMonitor::GradientNormMonitor(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "gradient_norm_monitor");
}

void GradientNormMonitor::on_fit_start(Trainer& trainer, Module& module) {
  names_ = options_.per_parameter ? trainer.strategy().divided_model().parallel_model().parameter_names(module)
                                  : optim::ParameterNames();
}

void GradientNormMonitor::on_before_optimizer_step(Trainer& trainer, Module& module, OptimizerHandle& optimizer) {
  // The row is that of a batch, in which each optimizer may step in its turn.
  const int64_t steps_before = std::max<int64_t>(trainer.global_step() - optimizer.index(), 0);
  const int64_t steps_after = steps_before + std::ssize(trainer.optimizers());
  const int64_t every = trainer.options().log_every_n_steps;
  if (steps_after / every == steps_before / every) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : optimizer.parameters()) {
    const at::Tensor gradient = gradient_values(parameter);
    if (!gradient.defined()) continue;
    // Nothing has no largest element.
    gradients.push_back(gradient.numel() > 0 ? gradient : at::zeros({1}, gradient.options()));
    parameters.push_back(parameter);
  }
  if (gradients.empty()) return;
  std::vector<at::Tensor> each = at::_foreach_norm(gradients, options_.norm);
  for (auto& norm : each) norm = norm.to(each.front().options());
  const at::Tensor norms =
      trainer.strategy().divided_model().parallel_model().reduce_norms(at::stack(each), parameters, options_.norm);
  const LogOptions on_step{.on_step = true, .on_epoch = false};
  module.log(optimizer.index() == 0 ? "grad_norm" : fmt::format("grad_norm-{}", optimizer.index()),
             at::linalg_vector_norm(norms, options_.norm), on_step);
  if (!options_.per_parameter) return;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (const std::string* name = names_.find(parameters[i].unsafeGetTensorImpl()))
      module.log("grad_norm/" + *name, norms[static_cast<int64_t>(i)], on_step);
}

}  // namespace levin
