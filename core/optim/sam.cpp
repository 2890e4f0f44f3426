#include <levin/core/optim/sam.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/fused_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

namespace levin::optim {
namespace {

/// Keeps the norm's divisor from 0, as the paper's code has it.
constexpr double kLeastNorm = 1e-12;

/// Weights at the top of a step up, and the way back, which an error in between takes too.
class Climb {
 public:
  Climb(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SAMOptions& options) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& group : groups) {
      for (const auto& param : group.params()) {
        if (!param.grad().defined()) continue;
        if (param.grad().is_sparse())
          throw Error("optim", fmt::format("sam does not take sparse gradients; got one of shape {}; valid: {}",
                                           c10::str(param.sizes()), kTakesSparseGradients));
        weights_.push_back(param.detach());
        before_.push_back(param.detach().clone());
        gradients.push_back(param.grad());
      }
    }
    if (weights_.empty()) return;
    std::vector<at::Tensor> ways = at::_foreach_mul(gradients, 1);
    if (options.adaptive) at::_foreach_mul_(ways, at::_foreach_abs(weights_));
    std::vector<at::Tensor> norms = at::_foreach_norm(ways);
    for (auto& norm : norms) norm = norm.to(norms.front().options());
    const at::Tensor scale = options.rho / (at::linalg_vector_norm(at::stack(norms)) + kLeastNorm);
    if (options.adaptive) at::_foreach_mul_(ways, at::_foreach_abs(weights_));
    for (size_t i = 0; i < ways.size(); ++i) ways[i].mul_(scale.to(ways[i].options()));
    at::_foreach_add_(weights_, ways);
  }
  ~Climb() {
    const c10::InferenceMode normal_mode(false);
    const at::NoGradGuard no_grad;
    if (!weights_.empty()) at::_foreach_copy_(weights_, before_);
  }
  Climb(const Climb&) = delete;
  Climb& operator=(const Climb&) = delete;

 private:
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> before_;
};

}  // namespace

void SAMOptions::describe(Schema<SAMOptions>& schema) {
  schema.field("rho", &SAMOptions::rho, "length of the step up, to where the gradients are taken").at_least(0);
  schema.field("adaptive", &SAMOptions::adaptive, "scale it with the size of each weight (ASAM)");
}

SAM::SAM(std::shared_ptr<torch::optim::Optimizer> base, const Options& options)
    : WrappedOptimizer("sam", std::move(base)), options_(options) {
  schema_of<Options>().validate(options, "sam");
}

at::Tensor SAM::step(LossClosure closure) {
  if (!closure)
    throw Error("optim",
                "sam evaluates the loss itself, twice a step, and was given no closure; valid: step(closure), as "
                "automatic optimization calls it; hint: in manual optimization call optimizer().optimizer().step "
                "with one that runs backward");
  const c10::InferenceMode normal_mode(false);
  const auto evaluate = [&closure] {
    const at::AutoGradMode enable_grad(true);
    return closure();
  };
  at::Tensor loss = evaluate();
  {
    const Climb climb(param_groups_, options_);
    evaluate();
  }
  const at::NoGradGuard no_grad;
  step_base();
  return loss;
}

}  // namespace levin::optim
