#include <levin/core/optim/fast_adam.h>

#include <levin/core/base/permanent_library.h>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cmath>

namespace levin::optim {
namespace {

/// Elements that are worth a thread.
constexpr int64_t kGrain = 1 << 15;

/// What a step means for an element, worked out once in double precision.
struct Factors {
  explicit Factors(const FastAdamStep& step)
      : sign(step.maximize ? -1 : 1),
        penalty(static_cast<float>(step.decoupled ? 0 : step.weight_decay)),
        kept(static_cast<float>(step.decoupled ? 1 - step.lr * step.weight_decay : 1)),
        mean_gain(static_cast<float>(1 - step.beta1)),
        square_decay(static_cast<float>(step.beta2)),
        square_gain(static_cast<float>(1 - step.beta2)),
        root_correction(static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, step.step)))),
        eps(static_cast<float>(step.eps)),
        rate(static_cast<float>(step.lr / (1 - std::pow(step.beta1, step.step)))) {}

  float sign;
  float penalty;
  float kept;
  float mean_gain;
  float square_decay;
  float square_gain;
  float root_correction;
  float eps;
  float rate;
};

LEVIN_INLINE void update(float* __restrict param, const float* __restrict grad, float* __restrict exp_avg,
                         float* __restrict exp_avg_sq, int64_t count, const Factors& given) {
  const Factors f = given;  // which no store below can change
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = f.sign * grad[i] + f.penalty * param[i];
    const float mean = exp_avg[i] + (gradient - exp_avg[i]) * f.mean_gain;
    const float square = exp_avg_sq[i] * f.square_decay + gradient * gradient * f.square_gain;
    exp_avg[i] = mean;
    exp_avg_sq[i] = square;
    param[i] = param[i] * f.kept - f.rate * mean / (std::sqrt(square) * f.root_correction + f.eps);
  }
}

using Update = void (*)(float*, const float*, float*, float*, int64_t, const Factors&);

void update_portable(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t count,
                     const Factors& factors) {
  update(param, grad, exp_avg, exp_avg_sq, count, factors);
}
#if defined(LEVIN_HAS_X86_VECTORS)
LEVIN_TARGET_AVX2 void update_avx2(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t count,
                                   const Factors& factors) {
  update(param, grad, exp_avg, exp_avg_sq, count, factors);
}
LEVIN_TARGET_AVX512 void update_avx512(float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                                       int64_t count, const Factors& factors) {
  update(param, grad, exp_avg, exp_avg_sq, count, factors);
}
#endif

Update find_update(VectorSet vectors) {
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors == VectorSet::kAvx512) return update_avx512;
  if (vectors == VectorSet::kAvx2) return update_avx2;
#endif
  return update_portable;
}

void run(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
         at::TensorList steps, double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled,
         bool maximize, const std::optional<at::Tensor>& lr_tensor, const std::optional<at::Tensor>& grad_scale,
         const std::optional<at::Tensor>& found_inf) {
  if (found_inf.has_value() && found_inf->item<float>() != 0) return;
  FastAdamStep step{.lr = lr_tensor.has_value() ? lr_tensor->item<double>() : lr,
                    .beta1 = beta1,
                    .beta2 = beta2,
                    .eps = eps,
                    .weight_decay = weight_decay,
                    .decoupled = decoupled,
                    .maximize = maximize};
  const Update update = find_update(vector_set());
  std::optional<Factors> factors;
  for (size_t i = 0; i < params.size(); ++i) {
    if (grad_scale.has_value()) at::Tensor(grads[i]).div_(*grad_scale);
    if (const double number = *steps[i].const_data_ptr<float>(); !factors || number != step.step) {
      step.step = number;
      factors.emplace(step);
    }
    float* const param = params[i].mutable_data_ptr<float>();
    const float* const grad = grads[i].const_data_ptr<float>();
    float* const exp_avg = exp_avgs[i].mutable_data_ptr<float>();
    float* const exp_avg_sq = exp_avg_sqs[i].mutable_data_ptr<float>();
    at::parallel_for(0, params[i].numel(), kGrain, [&](int64_t begin, int64_t end) {
      update(param + begin, grad + begin, exp_avg + begin, exp_avg_sq + begin, end - begin, *factors);
    });
  }
}

/// What LibTorch does for its own operators that write.
void bump_versions(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors)
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

using Operator = c10::TypedOperatorHandle<decltype(run)>;

/// Registered when it is first asked for.
const Operator& fast_adam_operator() {
  static const Operator made = [] {
    torch::Library& library = permanent_library(torch::Library::FRAGMENT, "levin", std::nullopt);
    library.def(
        "fast_adam_(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, "
        "Tensor[] steps, float lr, float beta1, float beta2, float eps, float weight_decay, bool decoupled, "
        "bool maximize, Tensor? lr_tensor, Tensor? grad_scale, Tensor? found_inf) -> ()");
    library.impl("fast_adam_", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(run)));
    return c10::Dispatcher::singleton().findSchemaOrThrow("levin::fast_adam_", "").typed<decltype(run)>();
  }();
  return made;
}

}  // namespace

void fast_adam(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t count,
               const FastAdamStep& step, VectorSet vectors) {
  find_update(vectors)(param, grad, exp_avg, exp_avg_sq, count, Factors(step));
}

void fast_adam_(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                at::TensorList steps, const FastAdamStep& step, const std::optional<at::Tensor>& lr,
                const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
  for (const at::TensorList list : {params, grads, exp_avgs, exp_avg_sqs}) bump_versions(list);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  fast_adam_operator().call(params, grads, exp_avgs, exp_avg_sqs, steps, step.lr, step.beta1, step.beta2, step.eps,
                            step.weight_decay, step.decoupled, step.maximize, lr, grad_scale, found_inf);
}

}  // namespace levin::optim
