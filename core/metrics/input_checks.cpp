#include <levin/core/metrics/input_checks.h>

#include <levin/core/base/debug_checks.h>
#include <levin/core/base/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <limits>

namespace levin::metrics::detail {

void check_same_device(std::string_view metric, std::string_view words, const at::Tensor& a, const at::Tensor& b) {
  if (a.device() != b.device())
    throw Error("metrics", fmt::format("{}: {} are on different devices; got {} and {}; valid: one device", metric,
                                       words, a.device().str(), b.device().str()));
}

bool may_look_at(const at::Tensor& values) { return values.is_cpu() || DebugChecks::are_on(); }

void check_classes(std::string_view metric, const at::Tensor& classes, int64_t num_classes) {
  if (!may_look_at(classes)) return;
  const at::Tensor flat = classes.cpu().contiguous();
  const int64_t* values = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (values[i] < 0 || values[i] >= num_classes)
      throw Error("metrics", fmt::format("{}: a class is out of range; got {}; valid: 0 to {}; hint: set num_classes",
                                         metric, values[i], num_classes - 1));
  }
}

at::Tensor without_rounding(const at::Tensor& values) {
  const bool is_narrow = values.is_floating_point() && values.scalar_type() != at::kDouble;
  return values.detach().to(is_narrow ? at::kFloat : at::kDouble);
}

at::Tensor undefined_value(const at::Tensor& like) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), like.options().dtype(at::kDouble).requires_grad(false));
}

void throw_outside(std::string_view metric, int64_t samples, int64_t num_classes) {
  throw Error("metrics",
              fmt::format("{}: labels or predicted classes are out of range; got {} such samples; valid: 0 to "
                          "{}; hint: set num_classes",
                          metric, samples, num_classes - 1));
}

}  // namespace levin::metrics::detail
