#include <levin/strategies/ddp/gradient_reducer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/recording.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

namespace levin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// The loss as it is; in backward, a parameter beside it gets a gradient that was given, whatever the loss is scaled
/// by.
struct WithGradientOf : torch::autograd::Function<WithGradientOf> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& loss, const at::Tensor& /*parameter*/,
                            const at::Tensor& gradient) {
    context->saved_data["gradient"] = gradient;
    return loss.view_as(loss);
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    return {gradients[0], context->saved_data["gradient"].toTensor(), at::Tensor()};
  }
};

struct NoWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// Gradients that there are, each without gaps, in its parameter's order and in memory of its own.
std::vector<at::Tensor> own_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size() + 1);
  std::vector<const c10::StorageImpl*> taken;
  // Who refers to the memory of a gradient means its value before it is combined; a recorded step's plan does not.
  const auto is_own = [&, recorded = step_is_recorded()](const at::Tensor& gradient) {
    if (!recorded) return gradient.storage().use_count() == 1;
    const auto* const memory = gradient.storage().unsafeGetStorageImpl();
    if (std::find(taken.begin(), taken.end(), memory) != taken.end()) return false;
    taken.push_back(memory);
    return true;
  };
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    gradient = dense_gradient(gradient);
    const bool is_ready = gradient.layout() == at::kStrided && gradient.scalar_type() == at::kFloat &&
                          gradient.strides() == parameter.strides() && !gradient.is_neg();
    // Autograd gives parameters that are added to each other views of one gradient.
    if (!is_ready || !is_own(gradient))
      gradient = at::empty_like(parameter, at::TensorOptions().requires_grad(false)).copy_(gradient);
    gradients.push_back(gradient);
  }
  return gradients;
}

void average(std::vector<at::Tensor>& tensors, c10d::Backend& backend) {
  c10d::AllreduceCoalescedOptions options;
  // As c10d's Reducer: first divided, then added up.
  options.reduceOp = c10d::makeNCCLPreMulSum(1.0 / backend.getSize());
  backend.allreduce_coalesced(tensors, options)->wait();
}

/// Zero, whatever the parameter holds, infinities included: of no element.
at::Tensor nothing_of(const at::Tensor& parameter) { return parameter.reshape({-1}).slice(0, 0, 0).sum(); }

}  // namespace

GradientReducer::GradientReducer(const Parameters& parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                                 GradientReducerOptions options)
    : options_(std::move(options)) {
  Parameters combined;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) continue;
    trained_.push_back(parameter);
    if (options_.sparse.contains(parameter.unsafeGetTensorImpl())) {
      sparse_.push_back(parameter);
      continue;
    }
    combined.emplace_back(name, parameter);
    parameters_.push_back(parameter);
    names_.push_back(name);
  }
  if (trained_.empty())
    throw Error("ddp", "no parameter requires a gradient, so that there is nothing to train; hint: all may be frozen");
  if (parameters_.empty()) options_.reduces_window = false;
  if (options_.reduces_window) {
    // In 16 bits a weight would be rounded.
    const auto type = parameters_.front().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    window_inputs_ = at::zeros({2}, parameters_.front().options().dtype(type)).requires_grad_();
  }
  if (why_not_in_place(combined, *group, options_).empty()) {
    backend_ = group->getBackend(parameters_.front().device().type());
    return;
  }
  group_ = std::move(group);
  // Its first iteration counts the hooks of a static graph, those of backwards without communication too.
  if (!options_.static_graph && uses_reducer()) make_reducer();
  if (!options_.completes_backward) return;
  reached_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i)
    hooks_.push_back(parameters_[i].register_hook([this, i](const at::Tensor& /*gradient*/) { reached_[i] = 1; }));
}

void GradientReducer::make_reducer() {
  std::vector<at::Tensor> reduced = parameters_;
  std::unordered_map<size_t, std::string> names;
  for (const auto& name : names_) names.emplace(names.size(), name);
  if (options_.reduces_window) {
    names.emplace(names.size(), "(the window's weight)");
    reduced.push_back(window_inputs_);
  }
  const std::vector<bool> sparse(reduced.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      reduced, {static_cast<size_t>(options_.first_bucket_bytes), static_cast<size_t>(options_.bucket_bytes)}, sparse);
  // Gradients become ready from the last parameter to the first.
  std::reverse(buckets.begin(), buckets.end());
  reducer_ = std::make_shared<c10d::Reducer>(
      reduced, std::move(buckets), group_, sparse, options_.bucket_bytes, options_.find_unused_parameters,
      /*gradient_as_bucket_view=*/true, std::move(names), options_.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>{});
  if (options_.find_unused_parameters) {
    // Without one, LibTorch 2.11 follows a null pointer.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
  }
  if (options_.static_graph) reducer_->set_static_graph();
  if (options_.configure) options_.configure(*reducer_);
}

GradientReducer::~GradientReducer() {
  for (size_t i = 0; i < hooks_.size(); ++i) parameters_[i].remove_hook(hooks_[i]);
}

bool GradientReducer::fits(const Parameters& parameters) const {
  size_t next = 0;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) continue;
    if (next == trained_.size() || !trained_[next].is_same(parameter)) return false;
    ++next;
  }
  return next == trained_.size();
}

std::string GradientReducer::why_not_in_place(const Parameters& parameters, c10d::ProcessGroup& group,
                                              const GradientReducerOptions& options) {
  if (!options.in_place)
    return "find_unused_parameters, static_graph, gradient_compression or a communication hook asks for it";
  int64_t bytes = 0;
  bool is_first = true;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) continue;
    if (options.sparse.contains(parameter.unsafeGetTensorImpl()))
      return fmt::format("the gradient of {} is sparse; hint: make the Embedding without `sparse`", name);
    if (std::exchange(is_first, false)) {
      const std::string backend = group.getBackend(parameter.device().type())->getBackendName();
      if (backend != "shared_memory")
        return fmt::format("the backend is {}; valid: shared_memory, of ranks on the CPUs of one host", backend);
    }
    if (!parameter.device().is_cpu() || parameter.scalar_type() != at::kFloat || parameter.layout() != at::kStrided ||
        !parameter.is_non_overlapping_and_dense())
      return fmt::format("{} is no dense tensor of float32 on the CPU", name);
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  if (is_first) return "no parameter is trained";
  return bytes <= options.first_bucket_bytes || options.in_place_of_any_size ? ""
                                                                             : "they are more than the first bucket";
}

void GradientReducer::after_backward(bool sync) {
  if (backend_ == nullptr || !sync) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (!parameters_[i].grad().defined())
      throw Error("ddp", fmt::format("parameter {} got no gradient: the loss does not depend on it; hint: freeze it "
                                     "(requires_grad), or set find_unused_parameters: true",
                                     names_[i]));
  std::vector<at::Tensor> gradients = own_gradients(parameters_);
  if (window_inputs_.defined()) gradients.push_back(window_inputs_.grad());
  average(gradients, *backend_);
}

void GradientReducer::combine_in_place(const std::vector<at::Tensor>& parameters, const Parameters& all,
                                       c10d::ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  // A number that follows from which parameters they are: its mean is another than itself on one rank at least where
  // the ranks' differ. Sums of it are exact.
  constexpr uint32_t kNumbers = uint32_t{1} << 16;
  uint32_t number = 1;
  size_t next = 0;
  for (size_t i = 0; i < all.size() && next < parameters.size(); ++i) {
    if (!all[i].second.is_same(parameters[next])) continue;
    number = (number * 31 + static_cast<uint32_t>(i)) % kNumbers;
    ++next;
  }
  std::vector<at::Tensor> averaged = own_gradients(parameters);
  averaged.push_back(at::full({1}, static_cast<double>(number), at::kFloat));
  average(averaged, *group.getBackend(parameters.front().device().type()));
  if (*averaged.back().const_data_ptr<float>() != static_cast<float>(number))
    throw Error("ddp",
                "ranks ran backward through different parameters, which recorded steps cannot combine; hint: leave "
                "graph out");
}

void GradientReducer::before_forward() {
  if (!uses_reducer()) return;
  if (reducer_ == nullptr) make_reducer();
  reducer_->prepare_for_forward();
  reducer_->rebuild_buckets();
}

at::Tensor GradientReducer::before_backward(const at::Tensor& loss, const AccumulationWindow& window,
                                            const LossWeight& window_weight) {
  const bool sync = window.sync;
  at::Tensor start = loss;
  if (options_.reduces_window) {
    if (window.index == 0 || sync) window_inputs_.mutable_grad().reset();
    // Of the window as a whole, told in its last backward.
    const double weight = sync ? window_weight.on_host().value_or(0) : 0;
    const at::Tensor own = at::tensor({weight, sync && window.has_next ? 1.0 : 0.0}, window_inputs_.options());
    if (backend_ != nullptr)
      window_inputs_.mutable_grad() = own;
    else
      start = WithGradientOf::apply(start, window_inputs_, own);
  }
  std::fill(reached_.begin(), reached_.end(), uint8_t{0});
  if (!sync || !uses_reducer()) return start;
  if (options_.static_graph && first_backward_) {
    // In its first step, in which the order of the gradients is found out, all are combined once the graph is done.
    start = start.view_as(start);
    start.register_hook([reducer = reducer_.get()](const at::Tensor& /*gradient*/) {
      torch::autograd::Engine::get_default_engine().queue_callback([reducer] { reducer->delay_all_reduce(); });
    });
    first_backward_ = false;
  }
  if (options_.find_unused_parameters && !options_.static_graph) {
    NoWarnings handler;
    std::optional<c10::WarningUtils::WarningHandlerGuard> silence;
    if (options_.may_find_none_unused) silence.emplace(&handler);
    reducer_->prepare_for_backward({start});
  } else {
    reducer_->prepare_for_backward({});
  }
  return start;
}

Strategy::WindowTotals GradientReducer::window_totals() const {
  const at::Tensor means = window_inputs_.grad().to(at::kDouble);
  const double* value = means.const_data_ptr<double>();
  return {.mean_weight = value[0], .any_loss = value[0] > 0, .any_next = value[1] > 0};
}

void GradientReducer::complete_backward() {
  std::vector<at::Tensor> rest;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (reached_[i] == 0) rest.push_back(nothing_of(parameters_[i]));
  if (!rest.empty()) torch::autograd::backward(rest);
}

void GradientReducer::require_dense_gradients() const {
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].grad().defined() && parameters_[i].grad().is_sparse())
      throw Error("ddp",
                  fmt::format("the gradient of '{}' is sparse, and it is no table of an Embedding or EmbeddingBag; "
                              "valid: such a module with `sparse`, or an embedding without",
                              names_[i]));
}

at::Tensor GradientReducer::zero_loss() const {
  // Of sparse ones alone it reaches none: they have no gradient then.
  at::Tensor sum =
      at::zeros({}, trained_.front().options().requires_grad(false)).set_requires_grad(parameters_.empty());
  for (const at::Tensor& parameter : parameters_) sum = sum + nothing_of(parameter);
  return sum;
}

}  // namespace levin
