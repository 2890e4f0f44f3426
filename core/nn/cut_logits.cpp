#include <levin/core/nn/cut_logits.h>

#include <levin/core/base/error.h>
#include <levin/core/base/permanent_library.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/storage_marks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {
namespace {

using detail::has_behaviour_key;
using detail::kBehaviourKey;
using detail::kBelowBehaviours;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using CutLogits = detail::StorageMarks<std::shared_ptr<const ClassShare>>;

/// Of cut logits; nullptr for what is none.
std::shared_ptr<const ClassShare> classes_of(const at::Tensor& tensor) {
  return CutLogits::instance().find(tensor).value_or(nullptr);
}

struct ShareHolder : torch::CustomClassHolder {
  explicit ShareHolder(std::shared_ptr<const ClassShare> held) : share(std::move(held)) {}
  std::shared_ptr<const ClassShare> share;
};

at::Tensor plain(const at::Tensor& tensor) { return detail::with_behaviour_key(tensor, /*key=*/false); }

/// The identity; its gradients are ordinary tensors.
struct MarkLogits : torch::autograd::Function<MarkLogits> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& logits,
                            const std::shared_ptr<const ClassShare>& share) {
    at::Tensor marked = detail::with_behaviour_key(logits, /*key=*/true);
    CutLogits::instance().set(marked, share);
    return marked;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    if (has_behaviour_key(gradients[0])) gradients[0] = plain(gradients[0]);
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor all_reduced(const ClassShare& share, at::Tensor tensor, ReduceOp op) {
  share.group->all_reduce(tensor, op)->wait();
  return tensor;
}

/// The losses of rows of logits [rows, classes here]; their mean or sum over those that count.
struct CutCrossEntropy : torch::autograd::Function<CutCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& target,
                            const std::shared_ptr<const ClassShare>& share, int64_t reduction, int64_t ignore_index,
                            double smoothing) {
    const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor values = plain(logits).detach().to(type);
    const at::Tensor shifted = values - all_reduced(*share, values.amax(1), ReduceOp::kMax).unsqueeze(1);
    const at::Tensor counted = target != ignore_index;
    const at::Tensor local = target - share->begin;
    const at::Tensor is_here = (local >= 0).logical_and_(local < share->size).logical_and_(counted);
    const at::Tensor place = local.masked_fill(is_here.logical_not(), 0).unsqueeze(1);
    at::Tensor probabilities = shifted.exp();
    const at::Tensor sums = all_reduced(
        *share,
        at::stack({probabilities.sum(1), shifted.gather(1, place).squeeze(1).masked_fill(is_here.logical_not(), 0),
                   smoothing > 0 ? shifted.sum(1) : at::zeros_like(local, shifted.options())}),
        ReduceOp::kSum);
    probabilities.div_(sums[0].unsqueeze(1));
    const at::Tensor count = reduction == at::Reduction::Mean ? counted.sum().to(type) : at::ones({}, values.options());
    context->save_for_backward({probabilities, place, is_here, counted, count});
    context->saved_data["type"] = static_cast<int64_t>(logits.scalar_type());
    context->saved_data["smoothing"] = smoothing;
    context->saved_data["classes"] = share->classes;
    at::Tensor losses = sums[0].log() - (1 - smoothing) * sums[1];
    if (smoothing > 0) losses = losses - smoothing / static_cast<double>(share->classes) * sums[2];
    losses = losses.masked_fill(counted.logical_not(), 0);
    return reduction == at::Reduction::None ? losses : losses.sum() / count;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (c10::GradMode::is_enabled())
      throw Error("tensor",
                  "gradients of gradients do not pass through the cross-entropy of logits that are cut over "
                  "ranks; hint: leave the head out of the plan");
    const auto saved = context->get_saved_variables();
    const double smoothing = context->saved_data["smoothing"].toDouble();
    at::Tensor result = saved[0].clone();
    result.scatter_add_(1, saved[1], saved[2].to(result.scalar_type()).unsqueeze(1) * (smoothing - 1));
    if (smoothing > 0) result.sub_(smoothing / static_cast<double>(context->saved_data["classes"].toInt()));
    const at::Tensor slope = gradients[0].dim() == 0 ? gradients[0] : gradients[0].unsqueeze(1);
    result.mul_(saved[3].unsqueeze(1) * (slope / saved[4]));
    return {result.to(static_cast<at::ScalarType>(context->saved_data["type"].toInt())), {}, {}, {}, {}, {}};
  }
};

[[noreturn]] void refuse(const std::string& what, const ClassShare& share) {
  throw Error("tensor", fmt::format("logits whose {} classes are cut over {} ranks do not go through {}; valid: "
                                    "element-wise operators, cross_entropy of rows [N, classes], argmax(-1); hint: "
                                    "levin::full_logits gives those of all classes",
                                    share.classes, share.group->world_size(), what));
}

/// Whether the last dimension is that of the classes here: views may have moved it.
bool ends_with_classes(const at::Tensor& tensor, const ClassShare& share) {
  return tensor.dim() > 0 && tensor.size(-1) == share.size && (tensor.stride(-1) == 1 || share.size == 1);
}

at::Tensor cross_entropy_seat(c10::DispatchKeySet keys, const at::Tensor& logits, const at::Tensor& target,
                              const std::optional<at::Tensor>& weight, int64_t reduction, c10::SymInt ignore_index,
                              double smoothing) {
  const auto share = classes_of(logits);
  if (share == nullptr)
    return detail::run_as_others("aten::cross_entropy_loss", "", keys,
                                 {logits, target, weight, reduction, std::move(ignore_index), smoothing})
        .back()
        .toTensor();
  if ((weight && weight->defined()) || logits.dim() != 2 || !ends_with_classes(logits, *share) || target.dim() != 1 ||
      target.size(0) != logits.size(0) || at::isFloatingType(target.scalar_type()))
    refuse("cross_entropy with weights of classes, with probabilities as targets or of other than rows", *share);
  const int64_t ignored = ignore_index.expect_int();
  if (target.device().is_cpu()) {
    const at::Tensor is_wrong = (target < 0).logical_or_(target >= share->classes).logical_and_(target != ignored);
    if (is_wrong.any().item<bool>())
      throw Error("tensor",
                  fmt::format("a target is no class; got {}; valid: 0 to {}, or {} to ignore",
                              target.masked_select(is_wrong)[0].item<int64_t>(), share->classes - 1, ignored));
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  return CutCrossEntropy::apply(logits, target, share, reduction, ignored, smoothing);
}

at::Tensor argmax_seat(c10::DispatchKeySet keys, const at::Tensor& logits, std::optional<int64_t> dim, bool keepdim) {
  const auto share = classes_of(logits);
  if (share == nullptr)
    return detail::run_as_others("aten::argmax", "", keys, {logits, dim, keepdim}).back().toTensor();
  if (!dim || (*dim != -1 && *dim != logits.dim() - 1) || !ends_with_classes(logits, *share))
    refuse("argmax over other than the last dimension", *share);
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  const at::NoGradGuard no_grad;
  const auto [values, places] = plain(logits).detach().max(-1, keepdim);
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes.insert(sizes.begin(), share->group->world_size());
  // The first of equal ones, as the ranks are in the order of their classes.
  const at::Tensor best = gather_flat(*share->group, values).view(sizes).argmax(0, /*keepdim=*/true);
  return gather_flat(*share->group, places + share->begin).view(sizes).gather(0, best).squeeze(0);
}

/// Operators that see each element by itself, and copies.
bool is_element_wise(std::string_view name) {
  static constexpr std::array kNames{"add",    "add_",     "sub",   "sub_",         "mul",        "mul_",
                                     "div",    "div_",     "neg",   "tanh",         "tanh_",      "exp",
                                     "relu",   "sigmoid",  "clone", "_unsafe_view", "_to_copy",   "clamp",
                                     "clamp_", "isfinite", "isnan", "empty_like",   "zeros_like", "ones_like"};
  constexpr std::string_view kAten = "aten::";
  return name.starts_with(kAten) && std::ranges::find(kNames, name.substr(kAten.size())) != kNames.end();
}

/// Runs an operator that takes cut logits.
bool run_on_logits(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  std::shared_ptr<const ClassShare> share;
  detail::for_each_tensor_argument(schema.arguments().size(), *stack, [&](const at::Tensor& tensor) {
    if (share == nullptr) share = classes_of(tensor);
  });
  if (share == nullptr) return false;
  if (detail::gives_view(operation)) {
    operation.redispatchBoxed(keys & kBelowBehaviours, stack);
    return true;
  }
  if (!is_element_wise(schema.name())) refuse(schema.name(), *share);
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  operation.redispatchBoxed(keys & kBelowBehaviours, stack);
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    if (c10::IValue& result = (*stack)[i]; result.isTensor() && !has_behaviour_key(result.toTensor()))
      result = MarkLogits::apply(result.toTensor(), share);
  return true;
}

void install_logits() {
  static std::once_flag once;
  std::call_once(once, [] {
    torch::Library& aten = permanent_library(torch::Library::IMPL, "aten", kBehaviourKey);
    detail::add_operator_handler(run_on_logits);
    aten.impl("cross_entropy_loss", TORCH_FN(cross_entropy_seat));
    aten.impl("argmax", TORCH_FN(argmax_seat));
  });
}

}  // namespace

at::Tensor make_cut_logits(const at::Tensor& logits, ClassShare share) {
  install_logits();
  return MarkLogits::apply(logits, std::make_shared<const ClassShare>(std::move(share)));
}

bool are_cut_logits(const at::Tensor& tensor) { return classes_of(tensor) != nullptr; }

std::vector<int64_t> full_logits_shape(const at::Tensor& logits) {
  std::vector<int64_t> shape = logits.sizes().vec();
  const auto share = classes_of(logits);
  if (share == nullptr) return shape;
  if (!ends_with_classes(logits, *share)) refuse("full_logits_shape of another form", *share);
  shape.back() = share->classes;
  return shape;
}

at::Tensor full_logits(const at::Tensor& logits) {
  const auto share = classes_of(logits);
  if (share == nullptr) return logits;
  if (!ends_with_classes(logits, *share)) refuse("full_logits of another form", *share);
  return DimensionCut(share->group, logits.dim() - 1).whole_of(plain(logits).detach());
}

}  // namespace levin
