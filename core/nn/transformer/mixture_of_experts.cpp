#include <levin/core/nn/transformer/mixture_of_experts.h>

#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>
#include <levin/core/nn/checkpointed_call.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/transformer/linear_layer.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/nn/init.h>

#include <cmath>
#include <memory>
#include <vector>

namespace levin::nn {
namespace {

constexpr const char* kExperts = "experts";

/// As torch::nn::Linear draws them, of each expert for itself.
void draw(at::Tensor& weights, double initial_std) {
  for (const at::Tensor& weight : weights.detach().unbind(0)) {
    if (initial_std > 0)
      torch::nn::init::normal_(weight, 0, initial_std);
    else
      torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  }
}

at::Tensor in_32_bits(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

std::vector<const MixtureOfExpertsImpl*> mixtures_in(const torch::nn::Module& module) {
  std::vector<const MixtureOfExpertsImpl*> found;
  const auto look_at = [&](const torch::nn::Module& one) {
    if (const auto* const mixture = dynamic_cast<const MixtureOfExpertsImpl*>(&one)) found.push_back(mixture);
  };
  look_at(module);
  for (const auto& child : module.modules(/*include_self=*/false)) look_at(*child);
  if (found.empty()) throw Error(kExperts, "the module has no MixtureOfExperts, of which there would be a loss");
  return found;
}

template <class Loss>
at::Tensor sum_over_mixtures(const torch::nn::Module& module, const Loss& loss) {
  at::Tensor sum;
  for (const MixtureOfExpertsImpl* const mixture : mixtures_in(module))
    sum = sum.defined() ? sum + loss(*mixture) : loss(*mixture);
  return sum;
}

}  // namespace

ExpertsImpl::ExpertsImpl(const MixtureOfExpertsOptions& options) : activation_(options.activation) {
  gate_up_proj = register_parameter("gate_up_proj", at::empty({options.experts, 2 * options.hidden, options.width}));
  down_proj = register_parameter("down_proj", at::empty({options.experts, options.width, options.hidden}));
  draw(gate_up_proj, options.initial_std);
  draw(down_proj, options.initial_std);
}

at::Tensor ExpertsImpl::forward(const at::Tensor& rows, at::IntArrayRef counts) {
  if (rows.size(0) == 0) return rows;
  const std::vector<at::Tensor> inputs = rows.split_with_sizes(counts);
  const std::vector<at::Tensor> inner = gate_up_proj.unbind(0);
  const std::vector<at::Tensor> outer = down_proj.unbind(0);
  std::vector<at::Tensor> outputs;
  for (size_t expert = 0; expert < inputs.size(); ++expert) {
    if (counts[expert] == 0) continue;
    const std::vector<at::Tensor> parts = at::linear(inputs[expert], inner[expert]).chunk(2, -1);
    outputs.push_back(at::linear(activate(parts[0], activation_) * parts[1], outer[expert]));
  }
  return at::cat(outputs);
}

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options) : options_(options) {
  if (options.width < 1 || options.hidden < 1 || options.experts < 1 || options.active < 1 ||
      options.active > options.experts || options.shared_hidden < 0)
    throw ConfigError(fmt::format(
        "MixtureOfExperts: width, hidden and experts are at least 1, active is 1 to experts, and shared_hidden 0 or "
        "above; got {}, {}, {}, {} and {}",
        options.width, options.hidden, options.experts, options.active, options.shared_hidden));
  gate = register_module("gate", detail::make_linear(options.width, options.experts, false, options.initial_std));
  experts = register_module(kExperts, Experts(options));
  if (options.shared_hidden > 0)
    shared_experts = register_module("shared_experts", Mlp(MlpOptions{.width = options.width,
                                                                      .hidden = options.shared_hidden,
                                                                      .activation = options.activation,
                                                                      .initial_std = options.initial_std}));
  load = at::zeros({options.experts}, at::kLong);
  if (options.has_balance_bias) balance_bias = register_buffer("balance_bias", at::zeros({options.experts}));
}

at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& x) {
  refuse_while_recording("MixtureOfExperts", "graph: false, for the numbers of an expert's tokens change");
  const at::Tensor own = local_part(x);  // each token is seen for itself
  at::Tensor mixed = mix(own.flatten(0, -2)).view_as(own);
  if (shared_experts) mixed = mixed + shared_experts(own);
  return is_context_part(x) ? levin::detail::like_context_part(mixed, x) : mixed;
}

at::Tensor MixtureOfExpertsImpl::mix(const at::Tensor& tokens) {
  const at::Tensor logits = in_32_bits(gate(tokens));
  if (logits.is_cpu() && !logits.isfinite().all().item<bool>())
    throw Error(kExperts,
                fmt::format("the router's logits of {} tokens are not all numbers; hint: look for a NaN before "
                            "it with the callback nan_monitor, or lower the learning rate",
                            tokens.size(0)));
  const at::Tensor scores = options_.scores == ExpertScores::kSoftmax ? logits.softmax(-1) : logits.sigmoid();
  const at::Tensor biased = balance_bias.defined() ? scores.detach() + balance_bias : scores.detach();
  const at::Tensor choice = std::get<1>(biased.topk(options_.active, -1));  // [tokens, active]
  at::Tensor shares = scores.gather(-1, choice);
  if (options_.normalize) shares = shares / shares.sum(-1, /*keepdim=*/true).clamp_min(1e-20);
  if (options_.scale != 1) shares = shares * options_.scale;
  // A forward that runs again for backward has been seen.
  if (!is_recomputing()) {
    last_logits_ = logits;
    last_choice_ = choice;
  }

  const at::Tensor flat = choice.flatten();
  const at::Tensor order = flat.argsort(/*stable=*/true);  // by expert
  const at::Tensor counted = at::bincount(flat, {}, options_.experts);
  if (is_training() && !is_recomputing()) load = load.to(counted.device()) + counted;
  const at::Tensor on_host = counted.to(at::kCPU);
  const at::IntArrayRef counts(on_host.const_data_ptr<int64_t>(), static_cast<size_t>(options_.experts));
  const at::Tensor copies = tokens.unsqueeze(1).expand({-1, options_.active, -1}).flatten(0, 1);
  const at::Tensor seen = experts(copies.index_select(0, order), counts);
  // Sums in the order of a token's experts, whatever the order of memory is.
  return (seen.index_select(0, order.argsort()).view({tokens.size(0), options_.active, -1}) *
          shares.to(seen.scalar_type()).unsqueeze(-1))
      .sum(1)
      .to(tokens.scalar_type());
}

at::Tensor MixtureOfExpertsImpl::balance_loss() const {
  if (!last_logits_.defined()) throw Error(kExperts, "balance_loss is of the last forward, and there was none");
  const at::Tensor counts = at::bincount(last_choice_.flatten(), {}, options_.experts).to(last_logits_.scalar_type());
  const at::Tensor probabilities = options_.scores == ExpertScores::kSoftmax
                                       ? last_logits_.softmax(-1)
                                       : last_logits_.sigmoid() / last_logits_.sigmoid().sum(-1, /*keepdim=*/true);
  return static_cast<double>(options_.experts) *
         (counts / static_cast<double>(last_logits_.size(0)) * probabilities.mean(0)).sum();
}

at::Tensor MixtureOfExpertsImpl::z_loss() const {
  if (!last_logits_.defined()) throw Error(kExperts, "z_loss is of the last forward, and there was none");
  return last_logits_.logsumexp(-1).square().mean();
}

void MixtureOfExpertsImpl::move_balance_bias(double rate) {
  if (!balance_bias.defined())
    throw Error(kExperts, "move_balance_bias: the mixture has no bias; hint: has_balance_bias");
  const at::NoGradGuard no_grad;
  const at::Tensor seen = load.to(balance_bias.device(), balance_bias.scalar_type());
  balance_bias.add_((seen.mean() - seen).sign(), rate);
  load.zero_();
}

at::Tensor balance_loss(const torch::nn::Module& module) {
  return sum_over_mixtures(module, [](const MixtureOfExpertsImpl& mixture) { return mixture.balance_loss(); });
}

at::Tensor router_z_loss(const torch::nn::Module& module) {
  return sum_over_mixtures(module, [](const MixtureOfExpertsImpl& mixture) { return mixture.z_loss(); });
}

}  // namespace levin::nn
