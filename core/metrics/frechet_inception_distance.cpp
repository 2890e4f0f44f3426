#include <levin/core/metrics/frechet_inception_distance.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

namespace levin::metrics {
namespace {

// Of real images, and after them of generated ones.
constexpr size_t kRealImages = 0;
constexpr size_t kGeneratedImages = 3;
constexpr size_t kFeatureSum = 0;  ///< [features]
constexpr size_t kProductSum = 1;  ///< [features, features]
constexpr size_t kImageCount = 2;

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
  for (const char* images : {"real", "generated"}) {
    add_state(fmt::format("{}_features", images), at::zeros({options.num_features}, at::kDouble), Reduction::kSum);
    add_state(fmt::format("{}_products", images), at::zeros({options.num_features, options.num_features}, at::kDouble),
              Reduction::kSum);
    add_state(fmt::format("{}_images", images), at::zeros({}, at::kLong), Reduction::kSum);
  }
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
  const at::Tensor wide = features.detach().to(at::kDouble);
  const size_t first = real ? kRealImages : kGeneratedImages;
  state(first + kFeatureSum).add_(wide.sum(0));
  state(first + kProductSum).addmm_(wide.t(), wide);
  state(first + kImageCount).add_(wide.size(0));
  return *this;
}

FrechetInceptionDistance::Normal FrechetInceptionDistance::distribution(size_t first) const {
  const at::Tensor count = state(first + kImageCount).to(at::kDouble);
  const at::Tensor mean = state(first + kFeatureSum) / count;
  return {.mean = mean, .covariance = (state(first + kProductSum) - count * at::outer(mean, mean)) / (count - 1)};
}

at::Tensor FrechetInceptionDistance::compute() const {
  const Normal real = distribution(kRealImages);
  const Normal generated = distribution(kGeneratedImages);
  const auto is_usable = [this](size_t first, const Normal& normal) {
    return state(first + kImageCount).item<int64_t>() >= 2 && normal.covariance.isfinite().all().item<bool>();
  };
  if (!is_usable(kRealImages, real) || !is_usable(kGeneratedImages, generated))
    return detail::undefined_value(real.mean);
  return (real.mean - generated.mean).square().sum() + real.covariance.trace() + generated.covariance.trace() -
         2 * trace_of_root(real.covariance, generated.covariance);
}

}  // namespace levin::metrics
