#pragma once

#include <string>

namespace torch::optim {
class Optimizer;
}

namespace levin {

/// Throws ConfigError unless the optimizer's state can be divided over ranks: it is named by parameter, and there is
/// none yet. `strategy`: its name.
void require_divisible_state(const torch::optim::Optimizer& optimizer, const std::string& strategy);

/// Throws ConfigError unless the optimizer is known to step each parameter, or each part of one, by itself, so that
/// ranks may share the parameters out. `strategy`: as messages name it.
void require_tensor_wise(const torch::optim::Optimizer& optimizer, const std::string& strategy);

}  // namespace levin
