#include <levin/core/nn/transformer/rotary_embedding.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/transformer/block_operators.h>
#include <levin/core/nn/transformer/token_kernels.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <ostream>

namespace levin::nn {
namespace {

void check(const RotaryOptions& options) {
  const auto fail = [](const std::string& what) { throw ConfigError("RotaryEmbedding: " + what); };
  if (options.dim < 2 || options.dim % 2 != 0) fail(fmt::format("dim is even and at least 2; got {}", options.dim));
  if (options.theta <= 0) fail(fmt::format("theta is above 0; got {}", options.theta));
  if (options.factor <= 0) fail(fmt::format("factor is above 0; got {}", options.factor));
  const bool has_original = options.scaling == RotaryScaling::kLlama3 || options.scaling == RotaryScaling::kYarn;
  if (has_original && options.original_max_position < 1)
    fail(fmt::format("this scaling needs original_max_position, at least 1; got {}", options.original_max_position));
  if (options.scaling == RotaryScaling::kDynamic && (options.max_position < 1 || options.dim < 4))
    fail(fmt::format("dynamic scaling needs max_position, at least 1, and dim above 2; got {} and {}",
                     options.max_position, options.dim));
  if (options.scaling == RotaryScaling::kLlama3 && options.high_freq_factor <= options.low_freq_factor)
    fail(fmt::format("high_freq_factor is above low_freq_factor; got {} and {}", options.high_freq_factor,
                     options.low_freq_factor));
}

at::Tensor plain_frequencies(double theta, int64_t dim) {
  return at::pow(theta, at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim)).reciprocal();
}

/// Meta's code of Llama 3.1.
at::Tensor llama3_frequencies(const RotaryOptions& options) {
  const at::Tensor plain = plain_frequencies(options.theta, options.dim);
  const auto length = static_cast<double>(options.original_max_position);
  const at::Tensor wavelengths = 2 * std::numbers::pi / plain;
  const at::Tensor share =
      (length / wavelengths - options.low_freq_factor) / (options.high_freq_factor - options.low_freq_factor);
  const at::Tensor between = (1 - share) * plain / options.factor + share * plain;
  return at::where(wavelengths > length / options.low_freq_factor, plain / options.factor,
                   at::where(wavelengths < length / options.high_freq_factor, plain, between));
}

at::Tensor yarn_frequencies(const RotaryOptions& options) {
  const auto dim = static_cast<double>(options.dim);
  const auto feature_that_turns = [&](double turns) {
    return dim * std::log(static_cast<double>(options.original_max_position) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(options.theta));
  };
  double low = feature_that_turns(options.beta_fast);
  double high = feature_that_turns(options.beta_slow);
  if (options.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const at::Tensor plain = plain_frequencies(options.theta, options.dim);
  const at::Tensor kept = 1 - ((at::arange(options.dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  return plain / options.factor * (1 - kept) + plain * kept;
}

thread_local RotaryScope* current_scope = nullptr;

double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

}  // namespace

RotaryScope::RotaryScope() : is_outermost_(current_scope == nullptr) {
  if (is_outermost_) current_scope = this;
}

RotaryScope::~RotaryScope() {
  if (is_outermost_) current_scope = nullptr;
}

RotaryEmbeddingImpl::RotaryEmbeddingImpl(const RotaryOptions& options) : options_(options) { check(options); }

at::Tensor RotaryEmbeddingImpl::frequencies(const at::Tensor& places) const {
  switch (options_.scaling) {
    case RotaryScaling::kNone:
      break;
    case RotaryScaling::kLinear:
      return plain_frequencies(options_.theta, options_.dim) / options_.factor;
    case RotaryScaling::kDynamic: {
      if (places.numel() == 0) break;
      // By operators, so that recorded steps and exports follow the positions.
      const auto dim = static_cast<double>(options_.dim);
      const auto longest = static_cast<double>(options_.max_position);
      const at::Tensor share = (places.max().to(at::kDouble) + 1).clamp_min(longest) / longest;
      const at::Tensor grown = (options_.factor * share - (options_.factor - 1)).pow(dim / (dim - 2));
      const at::Tensor exponents = at::arange(0, options_.dim, 2, places.options().dtype(at::kFloat)) / dim;
      return at::pow(grown * options_.theta, exponents).reciprocal();
    }
    case RotaryScaling::kLlama3:
      return llama3_frequencies(options_);
    case RotaryScaling::kYarn:
      return yarn_frequencies(options_);
  }
  return plain_frequencies(options_.theta, options_.dim);
}

double RotaryEmbeddingImpl::attention_factor() const {
  if (options_.scaling != RotaryScaling::kYarn) return 1;
  if (options_.attention_factor) return *options_.attention_factor;
  if (options_.mscale != 0 && options_.mscale_all_dim != 0)
    return yarn_scale(options_.factor, options_.mscale) / yarn_scale(options_.factor, options_.mscale_all_dim);
  return yarn_scale(options_.factor, 1);
}

RotaryEmbeddingImpl::Tables RotaryEmbeddingImpl::compute_tables(const at::Tensor& positions,
                                                                const at::Tensor& x) const {
  const at::NoGradGuard no_gradients;
  const at::Tensor places = positions.clamp_min(0);
  at::Tensor angles = places.to(at::kFloat).unsqueeze(-1) * frequencies(places).to(x.device());
  if (positions.dim() == 2) angles = angles.unsqueeze(1);
  const double factor = attention_factor();
  const auto table = [&](at::Tensor values) {
    if (factor != 1) values.mul_(factor);
    return values.to(x.scalar_type());
  };
  return {table(angles.cos()), table(angles.sin())};
}

RotaryEmbeddingImpl::Tables RotaryEmbeddingImpl::tables_at(const at::Tensor& positions, const at::Tensor& x) const {
  if (current_scope == nullptr) return compute_tables(positions, x);
  RotaryScope::Entry& entry = current_scope->entries_[this];
  const bool is_last = entry.positions.is_same(positions) && entry.tables.first.scalar_type() == x.scalar_type() &&
                       entry.tables.first.device() == x.device();
  if (!is_last) entry = {positions, compute_tables(positions, x)};
  return entry.tables;
}

at::Tensor RotaryEmbeddingImpl::forward(const at::Tensor& x, const at::Tensor& positions) {
  const auto [cosines, sines] = tables_at(positions, x);
  if (x.dim() == 4 && detail::fits_block_operators(x, cosines)) return detail::rotate(x, cosines, sines);
  const int64_t half = options_.dim / 2;
  const at::Tensor first = x.narrow(-1, 0, half);
  const at::Tensor second = x.narrow(-1, half, half);
  std::vector<at::Tensor> parts{at::addcmul(first * cosines, second, sines, -1),
                                at::addcmul(second * cosines, first, sines)};
  if (x.size(-1) > options_.dim) parts.push_back(x.narrow(-1, options_.dim, x.size(-1) - options_.dim));
  return at::cat(parts, -1);
}

void RotaryEmbeddingImpl::rotate_(const at::Tensor& x, const at::Tensor& positions) const {
  const auto [cosines, sines] = tables_at(positions, x);
  const int64_t half = options_.dim / 2;
  detail::rotate_heads(x.mutable_data_ptr<float>(), cosines.const_data_ptr<float>(), sines.const_data_ptr<float>(),
                       x.size(0), positions.dim() == 2 ? half : 0, x.size(2), x.size(3), half);
}

void RotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "levin::nn::RotaryEmbedding(dim=" << options_.dim << ", theta=" << options_.theta << ")";
}

}  // namespace levin::nn
