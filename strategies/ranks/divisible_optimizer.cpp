#include <levin/strategies/ranks/divisible_optimizer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/state.h>
#include <levin/core/optim/optimizer_capabilities.h>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

namespace levin {

void require_divisible_state(const torch::optim::Optimizer& optimizer, const std::string& strategy) {
  if (dynamic_cast<const Stateful*>(&optimizer) != nullptr)
    throw ConfigError(
        fmt::format("strategy '{}' cannot divide the state of an optimizer that is a levin::Stateful; hint: give its "
                    "state through save() and load(), as torch::optim's do",
                    strategy));
  if (!optimizer.state().empty())
    throw ConfigError(
        fmt::format("strategy '{}' was given an optimizer that has state already, of whole parameters of all ranks; "
                    "hint: make it anew in configure_optimizers",
                    strategy));
}

void require_tensor_wise(const torch::optim::Optimizer& optimizer, const std::string& strategy) {
  const optim::OptimizerCapabilities capabilities = optim::capabilities_of(optimizer);
  if (capabilities.element_wise || capabilities.tensor_wise) return;
  if (capabilities.needs_closure)
    throw ConfigError(
        fmt::format("strategy {} does not work with an optimizer that evaluates the loss itself (LBFGS, SAM): each "
                    "rank steps its part of the parameters",
                    strategy));
  throw ConfigError(
      fmt::format("strategy {} gives each rank a part of the parameters, and this optimizer is not known to step each "
                  "parameter by itself; valid: levin::optim's but SAM, and SGD, Adam, AdamW, Adagrad and RMSprop of "
                  "torch::optim; hint: one of your own derives from levin::optim::DeclaresCapabilities and says "
                  "element_wise, or tensor_wise where it needs whole tensors",
                  strategy));
}

}  // namespace levin
