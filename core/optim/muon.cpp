#include <levin/core/optim/muon.h>

#include <levin/core/optim/element_update.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace levin::optim {

void MuonOptions::describe(Schema<MuonOptions>& schema) {
  schema.field("lr", &MuonOptions::lr, "learning rate").at_least(0);
  schema.field("weight_decay", &MuonOptions::weight_decay, "decoupled weight decay").at_least(0);
  schema.field("momentum", &MuonOptions::momentum, "share of the momentum that each step keeps").at_least(0);
  schema.field("nesterov", &MuonOptions::nesterov, "Nesterov momentum");
  schema.field("ns_coefficients", &MuonOptions::ns_coefficients, "coefficients of the Newton-Schulz iteration");
  schema.field("eps", &MuonOptions::eps, "smallest norm that a matrix is divided by").at_least(0);
  schema.field("ns_steps", &MuonOptions::ns_steps, "Newton-Schulz iterations a step")
      .at_least(0)
      .require("below 100", [](int64_t steps) { return steps < 100; });
  schema
      .field("adjust_lr_fn", &MuonOptions::adjust_lr_fn,
             "scaling of the learning rate by the matrix's size; match_rms_adamw: rates of AdamW suit it")
      .one_of({"original", "match_rms_adamw"});
  schema.field("bfloat16", &MuonOptions::bfloat16, "orthogonalize in bfloat16; false: in the parameter's type");
  schema.field("orthogonalize", &MuonOptions::orthogonalize,
               "orthogonalize the steps of matrices; false: AdamW, as for embeddings and the last layer");
  schema.field("adamw_betas", &MuonOptions::adamw_betas, "decay rates of the means of AdamW")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("adamw_eps", &MuonOptions::adamw_eps, "added to the denominator of AdamW").at_least(0);
}

Muon::Muon(std::vector<at::Tensor> params, const MuonOptions& options)
    : ElementOptimizerOf("muon", {{std::move(params), options}}, options) {}
Muon::Muon(Groups groups) : ElementOptimizerOf("muon", std::move(groups)) {}

namespace {

bool is_orthogonalized(const MuonOptions& options, const at::Tensor& param) {
  return options.orthogonalize && param.dim() == 2;
}

/// The nearest matrix of orthonormal rows or columns, up to singular values between 0.7 and 1.2, by iterations of a
/// polynomial of the fifth degree.
at::Tensor orthogonalized(const at::Tensor& matrix, const MuonOptions& options) {
  const auto& [a, b, c] = options.ns_coefficients;
  at::Tensor x = matrix.to(options.bfloat16 ? at::kBFloat16 : matrix.scalar_type());
  const bool is_tall = x.size(0) > x.size(1);
  if (is_tall) x = x.t();
  x = x / at::linalg_vector_norm(x).clamp_min_(options.eps);
  for (int64_t i = 0; i < options.ns_steps; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  return is_tall ? x.t() : x;
}

double learning_rate_factor(const MuonOptions& options, const at::Tensor& matrix) {
  const auto rows = static_cast<double>(matrix.size(0));
  const auto columns = static_cast<double>(matrix.size(1));
  if (options.adjust_lr_fn == "original") return std::sqrt(std::max(1.0, rows / columns));
  return 0.2 * std::sqrt(std::max(rows, columns));
}

struct DecoupledAdam {
  double rate, kept, square_correction, eps;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& square, V& /*unused*/) const {
    using C = detail::Constant<V>;
    mean = mean * C(betas[0]) + grad * C(1 - betas[0]);
    square = square * C(betas[1]) + grad * grad * C(1 - betas[1]);
    param = param * C(kept) - mean * C(rate) / (detail::square_root(square) * C(square_correction) + C(eps));
  }
};

}  // namespace

std::span<const StateField> Muon::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"momentum_buffer"}, {"exp_avg"}, {"exp_avg_sq"}};
  return kFields;
}

std::optional<std::vector<int64_t>> Muon::state_sizes(size_t group, const StateField& field,
                                                      const at::Tensor& param) const {
  const bool is_of_muon = std::string_view(field.name) == "momentum_buffer";
  if (is_of_muon != is_orthogonalized(group_options(group), param)) return std::nullopt;
  return param.sizes().vec();
}

void Muon::update_parameter(const MuonOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                            const std::array<at::Tensor, 3>& states) {
  const double kept = 1 - options.lr * options.weight_decay;
  if (!is_orthogonalized(options, param)) {
    detail::update_elements<2>(
        param, grad, {states[1], states[2], {}},
        DecoupledAdam{.rate = options.lr / (1 - std::pow(options.adamw_betas[0], step)),
                      .kept = kept,
                      .square_correction = 1 / std::sqrt(1 - std::pow(options.adamw_betas[1], step)),
                      .eps = options.adamw_eps,
                      .betas = options.adamw_betas});
    return;
  }
  if (param.numel() == 0) return;
  const at::Tensor& momentum = states[0];
  momentum.lerp_(grad, 1 - options.momentum);
  const at::Tensor update =
      orthogonalized(options.nesterov ? grad.lerp(momentum, options.momentum) : momentum, options);
  param.mul_(kept).add_(update, -options.lr * learning_rate_factor(options, param));
}

}  // namespace levin::optim
