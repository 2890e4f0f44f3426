#include <levin/callbacks/gradient_norm_monitor.h>

#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <limits>

namespace levin {

void GradientNormMonitorOptions::describe(Schema<GradientNormMonitorOptions>& schema) {
  schema.field("norm", &GradientNormMonitorOptions::norm, "which norm: 1, 2 or inf")
      .require("1, 2 or inf",
               [](double p) { return p == 1 || p == 2 || p == std::numeric_limits<double>::infinity(); });
  schema.field("per_parameter", &GradientNormMonitorOptions::per_parameter, "also the norm of every parameter's");
}

GradientNormMonitor::GradientNormMonitor(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "gradient_norm_monitor");
}

void GradientNormMonitor::on_fit_start(Trainer&, Module& module) {
  names_.clear();
  if (!options_.per_parameter) return;
  for (const auto& [name, parameter] : named_unique_parameters(module))
    names_.emplace(parameter.unsafeGetTensorImpl(), "grad_norm/" + name);
}

void GradientNormMonitor::on_before_optimizer_step(Trainer& trainer, Module& module, OptimizerHandle& optimizer) {
  // The step under way is counted once it is taken.
  if ((trainer.global_step() + 1) % trainer.options().log_every_n_steps != 0) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<const c10::TensorImpl*> parameters;
  for (const auto& parameter : optimizer.parameters()) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    parameters.push_back(parameter.unsafeGetTensorImpl());
  }
  if (gradients.empty()) return;
  std::vector<at::Tensor> norms = at::_foreach_norm(gradients, options_.norm);
  for (auto& norm : norms) norm = norm.to(norms.front().options());
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), options_.norm);
  // A strategy that shards gradients combines the squares.
  if (options_.norm == 2) total = trainer.strategy().reduce_norm(std::move(total));
  const LogOptions on_step{.on_step = true, .on_epoch = false};
  module.log(optimizer.index() == 0 ? "grad_norm" : fmt::format("grad_norm-{}", optimizer.index()), total, on_step);
  if (!options_.per_parameter) return;
  for (size_t i = 0; i < norms.size(); ++i)
    if (const auto name = names_.find(parameters[i]); name != names_.end()) module.log(name->second, norms[i], on_step);
}

}  // namespace levin
