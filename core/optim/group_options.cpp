#include <levin/core/optim/group_options.h>

#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

namespace levin::optim {
namespace {

template <class Options>
bool set_first_beta(torch::optim::OptimizerOptions& options, double beta) {
  auto* typed = dynamic_cast<Options*>(&options);
  if (typed == nullptr) return false;
  std::get<0>(typed->betas()) = beta;
  return true;
}

template <class Options>
bool set_plain_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  auto* typed = dynamic_cast<Options*>(&options);
  if (typed == nullptr) return false;
  typed->momentum(momentum);
  return true;
}

}  // namespace

std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

bool set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  if (auto* ours = dynamic_cast<DescribedGroupOptions*>(&options)) {
    double* value = ours->momentum();
    if (value != nullptr) *value = momentum;
    return value != nullptr;
  }
  return set_plain_momentum<torch::optim::SGDOptions>(options, momentum) ||
         set_plain_momentum<torch::optim::RMSpropOptions>(options, momentum) ||
         set_first_beta<torch::optim::AdamOptions>(options, momentum) ||
         set_first_beta<torch::optim::AdamWOptions>(options, momentum);
}

void zero_grad(torch::optim::Optimizer& optimizer, bool set_to_none) {
  at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    for (auto& param : group.params()) {
      at::Tensor& grad = param.mutable_grad();
      if (!grad.defined()) continue;
      if (set_to_none)
        grad.reset();
      else if (grad.requires_grad())
        grad = grad.detach().zero_();
      else
        grad.zero_();
    }
  }
}

}  // namespace levin::optim
