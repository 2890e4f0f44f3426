#include <levin/core/metrics/frechet_inception_distance.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>
#include <levin/core/metrics/moments.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

namespace levin::metrics {
namespace {

// Moments of the features.
constexpr size_t kRealImages = 0;
constexpr size_t kGeneratedImages = 1;

/// Σ √λ of the eigenvalues λ of a·b, by those of √a·b·√a, which are the same and real.
at::Tensor trace_of_root(const at::Tensor& a, const at::Tensor& b) {
  const auto [values, vectors] = at::linalg_eigh(a);
  const at::Tensor root = (vectors * values.clamp_min(0).sqrt()).matmul(vectors.t());
  return at::linalg_eigvalsh(root.matmul(b).matmul(root)).clamp_min(0).sqrt().sum();
}

}  // namespace

FrechetInceptionDistance::FrechetInceptionDistance(const Options& options) : options_(options) {
  if (!options.features)
    throw ConfigError(
        "FrechetInceptionDistance.features must be set: a function of images that gives [N, num_features]");
  if (options.num_features < 1)
    throw ConfigError(
        fmt::format("FrechetInceptionDistance.num_features must be at least 1; got {}", options.num_features));
  for (const char* images : {"real", "generated"})
    add_state(images, detail::no_moments(options.num_features), Reduction::kMoments);
}

FrechetInceptionDistance& FrechetInceptionDistance::update(const at::Tensor& images, bool real) {
  const UpdateScope scope(*this);
  const at::Tensor features = options_.features(images);
  if (!features.defined() || features.dim() != 2 || features.size(1) != options_.num_features ||
      !features.is_floating_point())
    throw Error(
        "metrics",
        fmt::format("FrechetInceptionDistance: features have another shape or type; got {} of images {}; valid: "
                    "floating-point [N, {}]; hint: set num_features",
                    features.defined() ? c10::str(features.sizes(), " ", features.scalar_type())
                                       : std::string("an undefined tensor"),
                    images.defined() ? c10::str(images.sizes()) : std::string("that are undefined"),
                    options_.num_features));
  ensure_device(features.device());
  detail::add_samples(state(real ? kRealImages : kGeneratedImages), features.detach().to(at::kDouble));
  return *this;
}

State FrechetInceptionDistance::upgraded(const State& saved) const {
  State moments = State::map();
  for (const std::string images : {"real", "generated"}) {
    const State* const sums = saved.find(images + "_features");
    if (sums == nullptr) return saved;
    moments[images] = detail::moments_from_sums(saved.at(images + "_images").as_tensor().to(at::kDouble),
                                                sums->as_tensor(), saved.at(images + "_products").as_tensor());
  }
  return moments;
}

at::Tensor FrechetInceptionDistance::compute() const {
  const detail::MomentParts real(state(kRealImages));
  const detail::MomentParts generated(state(kGeneratedImages));
  const auto is_usable = [](const detail::MomentParts& parts) {
    return parts.count.item<double>() >= 2 && parts.products.isfinite().all().item<bool>();
  };
  if (!is_usable(real) || !is_usable(generated)) return detail::undefined_value(real.count);
  // In one unit, in which products are in float64's range.
  const at::Tensor distance = (real.means - generated.means) + (real.rests - generated.rests);
  at::Tensor unit = at::maximum(at::maximum(real.units, generated.units), detail::unit_above(distance.abs())).max();
  unit = at::where(unit == 0, 1.0, unit);
  const auto covariance = [&unit](const detail::MomentParts& parts) {
    const at::Tensor shares = parts.units / unit;
    return parts.products * at::outer(shares, shares) / (parts.count - 1);
  };
  const at::Tensor real_covariance = covariance(real);
  const at::Tensor generated_covariance = covariance(generated);
  return ((distance / unit).square().sum() + real_covariance.trace() + generated_covariance.trace() -
          2 * trace_of_root(real_covariance, generated_covariance)) *
         unit * unit;
}

}  // namespace levin::metrics
