#include <levin/core/optim/optimizer_capabilities.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace levin::optim {
namespace {

template <class... Types>
bool is_any_of(const torch::optim::Optimizer& optimizer) {
  return ((dynamic_cast<const Types*>(&optimizer) != nullptr) || ...);
}

}  // namespace

OptimizerCapabilities capabilities_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* declared = dynamic_cast<const DeclaresCapabilities*>(&optimizer)) return declared->capabilities();
  if (is_any_of<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW, torch::optim::Adagrad,
                torch::optim::RMSprop>(optimizer))
    return {.element_wise = true};
  if (is_any_of<torch::optim::LBFGS>(optimizer)) return {.needs_closure = true};
  return {};
}

}  // namespace levin::optim
