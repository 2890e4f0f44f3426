#include <levin/core/nn/few_class_cross_entropy.h>

#include <levin/core/base/error.h>
#include <levin/core/base/permanent_library.h>
#include <levin/core/nn/behaviour_key.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

namespace levin {
namespace {

/// LibTorch's vectors are faster for more.
constexpr int64_t kMostClasses = 16;

std::tuple<at::Tensor, at::Tensor> compute_cross_entropy(const at::Tensor& input, const at::Tensor& target,
                                                         int64_t ignore_index) {
  at::Tensor loss = at::empty({}, input.options());
  at::Tensor gradient = at::empty_like(input);
  const int64_t rows = input.size(0);
  const int64_t classes = input.size(1);
  const auto* const wanted = target.const_data_ptr<int64_t>();
  int64_t counted = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (wanted[row] == ignore_index) continue;
    if (wanted[row] < 0 || wanted[row] >= classes) throw_no_such_class(wanted[row], classes, ignore_index);
    ++counted;
  }
  const float* logits = input.const_data_ptr<float>();
  auto* slopes = gradient.mutable_data_ptr<float>();
  const float share = 1 / static_cast<float>(counted);
  float sum_of_losses = 0;
  for (int64_t row = 0; row < rows; ++row, logits += classes, slopes += classes) {
    if (wanted[row] == ignore_index) {
      std::fill_n(slopes, classes, 0.0F);
      continue;
    }
    // A NaN is not above the largest, but makes the sum one.
    const float largest = *std::max_element(logits, logits + classes);
    float sum = 0;
    for (int64_t i = 0; i < classes; ++i) sum += slopes[i] = std::exp(logits[i] - largest);
    sum_of_losses += std::log(sum) - (logits[wanted[row]] - largest);
    const float scale = share / sum;
    for (int64_t i = 0; i < classes; ++i) slopes[i] *= scale;
    slopes[wanted[row]] -= share;
  }
  *loss.mutable_data_ptr<float>() = sum_of_losses / static_cast<float>(counted);
  return {std::move(loss), std::move(gradient)};
}

using CrossEntropyOperator = c10::TypedOperatorHandle<decltype(compute_cross_entropy)>;

/// Registered when it is first asked for.
const CrossEntropyOperator& cross_entropy_operator() {
  static const CrossEntropyOperator made = [] {
    torch::Library& library = permanent_library(torch::Library::FRAGMENT, "levin", std::nullopt);
    library.def("few_class_cross_entropy(Tensor input, Tensor target, int ignore_index) -> (Tensor, Tensor)");
    library.impl("few_class_cross_entropy", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(compute_cross_entropy)));
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("levin::few_class_cross_entropy", "")
        .typed<decltype(compute_cross_entropy)>();
  }();
  return made;
}

}  // namespace

void throw_no_such_class(int64_t got, int64_t classes, int64_t ignore_index) {
  throw Error("nn", fmt::format("cross_entropy was given a class that does not exist; got {}; valid: 0 to {}, and "
                                "{} for rows to ignore",
                                got, classes - 1, ignore_index));
}

bool fits_few_class_cross_entropy(const at::Tensor& input, const at::Tensor& target) {
  return input.device().is_cpu() && target.device().is_cpu() && input.layout() == at::kStrided &&
         target.layout() == at::kStrided && input.scalar_type() == at::kFloat && target.scalar_type() == at::kLong &&
         input.dim() == 2 && target.dim() == 1 && input.size(0) == target.size(0) && input.size(0) > 0 &&
         input.size(1) > 0 && input.size(1) <= kMostClasses && input.is_contiguous() && target.is_contiguous() &&
         !input.is_neg() && !detail::has_behaviour_key(input) && !detail::has_behaviour_key(target);
}

std::tuple<at::Tensor, at::Tensor> few_class_cross_entropy(const at::Tensor& input, const at::Tensor& target,
                                                           int64_t ignore_index) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return cross_entropy_operator().call(input, target, ignore_index);
}

}  // namespace levin
