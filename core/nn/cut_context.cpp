#include <levin/core/nn/cut_context.h>

#include <levin/core/base/error.h>
#include <levin/core/base/local_values.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/context_attention.h>
#include <levin/core/nn/operator_kinds.h>
#include <levin/core/nn/ring_attention.h>
#include <levin/core/nn/storage_marks.h>
#include <levin/core/nn/uneven_targets.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin {
namespace {

using detail::ContextLayout;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using detail::gives_shape_of_first;
using detail::is_about_the_tensor;
using detail::is_element_wise_operator;
using detail::is_one_of;

using ContextGroup = std::shared_ptr<Collective>;

// ---- Marks

/// The positions that parts are of.
struct ContextShare {
  ContextGroup group;
  int64_t length = 0;  ///< of all ranks
  ContextMethod method = ContextMethod::kAllToAll;

  int64_t part() const { return length / group->world_size(); }
};

/// What is known of the memory of a part: the position of its element i is i / spacing modulo the part's positions, so
/// that views need no marks of their own.
struct ContextMark {
  std::shared_ptr<const ContextShare> share;
  int64_t spacing = 1;
};

using ContextMarks = detail::StorageMarks<ContextMark>;

/// Where a view has the positions; nothing where it does not have all of them in their order.
std::optional<ContextLayout> layout_of(const at::Tensor& tensor, const ContextMark& mark) {
  const int64_t part = mark.share->part();
  if (tensor.storage_offset() / mark.spacing % part != 0) return std::nullopt;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const int64_t stride = tensor.stride(dim);
    if (tensor.size(dim) < 2 || stride < 1 || mark.spacing % stride != 0) continue;
    const int64_t inner = mark.spacing / stride;
    if (tensor.size(dim) % (inner * part) == 0) return ContextLayout{dim, tensor.size(dim) / (inner * part), inner};
  }
  return std::nullopt;
}

at::Tensor with_context_mark(const at::Tensor& part, const std::shared_ptr<const ContextShare>& share,
                             const ContextLayout& layout) {
  at::Tensor marked = detail::alias_with_behaviour_key(part, /*key=*/true);
  ContextMarks::instance().set(marked, {share, part.stride(layout.dim) * layout.inner});
  return marked;
}

/// Autograd saves tensors without the key, which backward then finds ordinary.
at::Tensor without_context_mark(const at::Tensor& part) {
  return part.is_leaf() && part.requires_grad() ? part : detail::alias_with_behaviour_key(part, /*key=*/false);
}

/// The same for code that asks whether there is a mark, also of a leaf.
at::Tensor ordinary(const at::Tensor& part) {
  return without_context_mark(part.is_leaf() && part.requires_grad() ? part.view_as(part) : part);
}

/// This rank's positions of a tensor that has all of them.
at::Tensor part_at(const at::Tensor& all, const ContextShare& share, const ContextLayout& layout) {
  const int64_t ranks = share.group->world_size();
  const int64_t rank = share.group->rank();
  if (share.method == ContextMethod::kAllToAll)
    return all.unflatten(layout.dim, {layout.outer, ranks, share.part() * layout.inner})
        .select(layout.dim + 1, rank)
        .flatten(layout.dim, layout.dim + 1);
  return detail::ring_part(all.unflatten(layout.dim, {layout.outer, -1}), layout.dim + 1, rank, ranks)
      .flatten(layout.dim, layout.dim + 1);
}

/// Positions in the order of ranks, from or to that of the sequence: a chunk of each in turn.
at::Tensor reordered(const at::Tensor& all, int64_t dim, const ContextShare& share, bool to_ranks) {
  return share.method == ContextMethod::kAllToAll
             ? all
             : detail::in_ring_order(all, dim, share.group->world_size(), to_ranks);
}

struct ContextShareHolder : torch::CustomClassHolder {
  explicit ContextShareHolder(std::shared_ptr<const ContextShare> held) : share(std::move(held)) {}
  std::shared_ptr<const ContextShare> share;
};

/// Parts, to all positions, of which each rank computes terms of its own.
struct GatherContext : torch::autograd::Function<GatherContext> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part,
                            const std::shared_ptr<const ContextShare>& share, int64_t dim) {
    context->saved_data["share"] = c10::IValue::make_capsule(c10::make_intrusive<ContextShareHolder>(share));
    context->saved_data["dim"] = dim;
    return reordered(DimensionCut(share->group, dim).whole_of(part), dim, *share, /*to_ranks=*/false);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    detail::refuse_second_derivatives_of_context();
    const auto share =
        c10::static_intrusive_pointer_cast<ContextShareHolder>(context->saved_data["share"].toCapsule())->share;
    const int64_t dim = context->saved_data["dim"].toInt();
    const at::Tensor by_rank = reordered(gradients[0], dim, *share, /*to_ranks=*/true)
                                   .unflatten(dim, {share->group->world_size(), -1})
                                   .movedim(dim, 0)
                                   .contiguous();
    at::Tensor own = at::empty(by_rank.sizes().slice(1), by_rank.options());
    share->group->reduce_scatter(own.view({-1}), by_rank.view({-1}), ReduceOp::kSum)->wait();
    return {own, at::Tensor(), at::Tensor()};
  }
};

// ---- Operators

thread_local const std::string* present_unit = nullptr;
std::atomic<int64_t> exchanges{0};
thread_local bool has_uneven_targets = false;

/// Works along `dim` and keeps it.
bool keeps_dimensions(std::string_view name) {
  return is_one_of(name, {"softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "logcumsumexp", "cumprod",
                          "glu", "sort", "topk", "argsort", "flip", "roll"});
}

/// Reduces `dim`, or all elements where that is not given.
bool is_reduction(std::string_view name) {
  return is_one_of(name, {"mean",
                          "sum",
                          "var",
                          "std",
                          "amax",
                          "amin",
                          "prod",
                          "all",
                          "any",
                          "logsumexp",
                          "linalg_vector_norm",
                          "norm",
                          "argmax",
                          "argmin",
                          "max",
                          "min",
                          "count_nonzero",
                          "nansum",
                          "nanmean",
                          "median"});
}

/// A loss of each class's scores.
bool is_class_loss(std::string_view name) {
  return is_one_of(name, {"cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"});
}

/// A loss of each element.
bool is_element_loss(std::string_view name) {
  return is_one_of(name, {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                          "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss"});
}

/// Views whose elements are not those of the strides alone.
bool is_other_view(std::string_view name) {
  return is_one_of(name, {"unfold", "as_strided", "diagonal", "view_as_complex", "view_as_real", "real", "imag"});
}

class ContextOperator {
 public:
  ContextOperator(const c10::OperatorHandle& operation, torch::jit::Stack& stack, ContextMark mark)
      : operation_(operation),
        stack_(stack),
        schema_(operation.schema()),
        first_(stack.size() - schema_.arguments().size()),
        share_(std::move(mark.share)),
        name_(schema_.name()),
        base_(name_) {
    if (base_.starts_with("aten::")) base_.remove_prefix(std::string_view("aten::").size());
    if (base_.ends_with('_') && !is_about_the_tensor(base_)) base_.remove_suffix(1);
  }

  void run() {
    const c10::impl::ExcludeDispatchKeyGuard below(detail::kBehaviourKey);
    if (is_about_the_tensor(base_)) return operation_.callBoxed(&stack_);
    if (base_ == "scaled_dot_product_attention") return run_attention();
    if (base_ == "dropout") return run_dropout();
    if (detail::gives_view(operation_)) return run_view();
    if (base_ == "where" && schema_.arguments().size() == 1) refuse();  // indices
    if (is_element_wise_operator(base_)) return run_as(prepare_element_wise());
    if (is_element_loss(base_)) return run_loss(prepare_element_wise());
    if (is_class_loss(base_)) return run_class_loss();
    if (is_list_operator()) return run_list();
    const ContextLayout* const own = layout_of_argument(0);
    if (own != nullptr) {
      const ContextLayout layout = *own;
      if (gives_shape_of_first(base_)) return run_as(layout);
      if (is_reduction(base_) && !is_element_wise_overload()) return run_reduction(layout);
      if (base_ == "max" || base_ == "min") return run_as(prepare_element_wise());
      if (keeps_dimensions(base_) && !names_dimension(layout.dim)) return run_as(layout);
      if (detail::is_norm_of_features(base_) && is_before_norm(layout)) return run_as(layout);
      if (is_product() && is_product_of_features(layout)) return run_as(layout);
      if (base_ == "gather" && !names_dimension(layout.dim)) return run_gather(layout);
      if (base_ == "repeat_interleave" && !names_dimension(layout.dim) && has_argument("dim")) return run_as(layout);
      // Without their number the classes would be those of this rank's positions.
      if (base_ == "one_hot" && argument("num_classes")->toInt() >= 0) return run_as(layout);
    }
    if (base_ == "addmm" && layout_of_argument(1) != nullptr && layout_of_argument(0) == nullptr &&
        layout_of_argument(2) == nullptr && layout_of_argument(1)->dim == 0)
      return run_as({*layout_of_argument(1)});
    if (base_ == "embedding" && layout_of_argument(1) != nullptr && !argument("scale_grad_by_freq")->toBool())
      return run_as(*layout_of_argument(1));
    refuse();
  }

 private:
  c10::IValue& argument(size_t index) { return stack_[first_ + index]; }
  const c10::IValue* argument(std::string_view name) const {
    for (size_t i = 0; i < schema_.arguments().size(); ++i)
      if (schema_.arguments()[i].name() == name) return &stack_[first_ + i];
    return nullptr;
  }
  bool has_argument(std::string_view name) const {
    const c10::IValue* const value = argument(name);
    return value != nullptr && !value->isNone();
  }
  bool is_written(size_t index) const {
    const auto* const alias = schema_.arguments()[index].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  static bool is_marked(const at::Tensor& tensor) { return is_context_part(tensor); }

  /// Of a part among the arguments; nullptr for what is none.
  const ContextLayout* layout_of_argument(size_t index) {
    if (index >= schema_.arguments().size() || !argument(index).isTensor()) return nullptr;
    const at::Tensor& tensor = argument(index).toTensor();
    if (!is_marked(tensor)) return nullptr;
    found_[index] = require_layout(tensor);
    return &found_[index];
  }
  ContextLayout require_layout(const at::Tensor& tensor) {
    const auto mark = ContextMarks::instance().find(tensor);
    const auto layout = layout_of(tensor, *mark);
    const ContextShare& other = *mark->share;
    if (other.length != share_->length || other.method != share_->method || other.group != share_->group || !layout)
      refuse();
    return *layout;
  }

  template <class Visit>
  void for_each_tensor_here(Visit&& visit) {
    for (size_t i = 0; i < schema_.arguments().size(); ++i)
      if (argument(i).isTensor() && argument(i).toTensor().defined()) visit(i, argument(i).toTensor());
  }

  /// Runs it on the parts, whose result has the positions there.
  void run_as(const ContextLayout& layout) {
    call_on_parts();
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) mark(stack_[i], layout);
  }
  void call_on_parts() {
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      c10::IValue& value = argument(i);
      if (is_written(i)) continue;
      if (value.isTensor()) {
        if (is_marked(value.toTensor())) value = without_context_mark(value.toTensor());
      } else if (value.isTensorList()) {
        std::vector<at::Tensor> tensors = value.toTensorVector();
        for (at::Tensor& tensor : tensors)
          if (is_marked(tensor)) tensor = without_context_mark(tensor);
        value = tensors;
      } else if (value.isOptionalTensorList()) {
        refuse();
      }
    }
    operation_.callBoxed(&stack_);
  }
  void mark(c10::IValue& value, const ContextLayout& layout) {
    const auto mark_tensor = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage() || detail::has_behaviour_key(tensor)) return tensor;
      const int64_t size = layout.outer * share_->part() * layout.inner;
      if (tensor.dim() <= layout.dim || tensor.size(layout.dim) != size) refuse();
      return with_context_mark(tensor, share_, layout);
    };
    if (value.isTensor()) value = mark_tensor(value.toTensor());
    if (!value.isTensorList()) return;
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = mark_tensor(tensor);
    value = tensors;
  }

  // ---- Views

  void run_view() {
    if (is_other_view(base_) || (base_ == "view" && schema_.overload_name() == "dtype")) refuse();
    std::optional<ContextLayout> before;
    std::vector<int64_t> sizes;
    if (const ContextLayout* const own = layout_of_argument(0)) {
      before = *own;
      sizes = argument(0).toTensor().sizes().vec();
    }
    // A written argument of another shape, or a list of parts, is no view of one part.
    if (!before) refuse();
    operation_.callBoxed(&stack_);
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) {
      if (stack_[i].isTensor()) stack_[i] = checked_view(stack_[i].toTensor(), *before, sizes);
      if (!stack_[i].isTensorList()) continue;
      std::vector<at::Tensor> views = stack_[i].toTensorVector();
      for (at::Tensor& view : views) view = checked_view(view, *before, sizes);
      stack_[i] = views;
    }
  }
  at::Tensor checked_view(const at::Tensor& view, const ContextLayout& before, const std::vector<int64_t>& sizes) {
    if (is_marked(view)) {
      require_layout(view);
      return view;
    }
    if (gives_shape_of_first(base_)) return with_context_mark(view, share_, before);
    // Copied, in the order of elements.
    const auto elements_behind = [](at::IntArrayRef of, int64_t dim) {
      return c10::multiply_integers(of.slice(static_cast<size_t>(dim) + 1));
    };
    const int64_t spacing = elements_behind(sizes, before.dim) * before.inner;
    for (int64_t dim = 0; dim < view.dim(); ++dim) {
      const int64_t behind = elements_behind(view.sizes(), dim);
      if (view.size(dim) < 2 || behind == 0 || spacing % behind != 0) continue;
      const int64_t inner = spacing / behind;
      if (view.size(dim) % (inner * share_->part()) == 0)
        return with_context_mark(view, share_, {dim, view.size(dim) / (inner * share_->part()), inner});
    }
    refuse();
  }

  // ---- Element-wise

  bool is_element_wise_overload() const { return has_argument("other"); }

  /// Cuts what has all positions; returns where the result has them.
  ContextLayout prepare_element_wise() {
    int64_t dims = 0;
    std::optional<ContextLayout> common;  // from the last dimension on
    for_each_tensor_here([&](size_t i, const at::Tensor& tensor) {
      dims = std::max(dims, tensor.dim());
      const ContextLayout* const own = layout_of_argument(i);
      if (own == nullptr) return;
      ContextLayout layout = *own;
      layout.dim -= tensor.dim();
      if (common && *common != layout) refuse();
      common = layout;
    });
    if (!common) refuse();
    const int64_t all = common->outer * share_->length * common->inner;
    const int64_t part = common->outer * share_->part() * common->inner;
    for_each_tensor_here([&](size_t i, const at::Tensor& tensor) {
      if (is_marked(tensor)) return;
      if (is_written(i)) refuse();
      argument(i) = cut_to_part(tensor, tensor.dim() + common->dim, *common, all, part);
    });
    return {dims + common->dim, common->outer, common->inner};
  }
  at::Tensor cut_to_part(const at::Tensor& tensor, int64_t dim, ContextLayout layout, int64_t all, int64_t part) {
    if (dim < 0 || tensor.size(dim) == 1) return tensor;
    layout.dim = dim;
    if (tensor.size(dim) == all) return part_at(tensor, *share_, layout);
    if (tensor.size(dim) == part)
      throw Error(
          "context",
          fmt::format("{}{} computes with {} of the {} positions of a sequence, which is cut over {} ranks, and "
                      "with a tensor {} that was made from the size of this part; valid: sizes of all "
                      "positions; hint: levin::full_sequence_length(x) instead of the size of the part",
                      where(), name_, share_->part(), share_->length, share_->group->world_size(),
                      c10::str(tensor.sizes())));
    return tensor;
  }

  // ---- Along dimensions

  /// Whether an argument names a dimension of the first argument.
  bool names_dimension(int64_t dim) {
    const int64_t dims = argument(0).toTensor().dim();
    const auto is_it = [&](int64_t named) { return (named < 0 ? named + dims : named) == dim; };
    bool names_none = true;
    for (const char* name : {"dim", "dims"}) {
      const c10::IValue* const value = argument(name);
      if (value == nullptr || value->isNone()) continue;
      names_none = false;
      if (value->isInt() && is_it(value->toInt())) return true;
      if (value->isIntList()) {
        const std::vector<int64_t> named = value->toIntVector();
        if (named.empty() || std::ranges::any_of(named, is_it)) return true;
      }
    }
    return names_none;
  }

  void run_reduction(const ContextLayout& layout) {
    if (!names_dimension(layout.dim)) {
      const c10::IValue* const keep = argument("keepdim");
      ContextLayout result = layout;
      if (keep == nullptr || !keep->toBool()) {
        const int64_t dims = argument(0).toTensor().dim();
        const c10::IValue* const value = argument("dim");
        const std::vector<int64_t> named = value->isInt() ? std::vector<int64_t>{value->toInt()} : value->toIntVector();
        for (const int64_t dim : named) result.dim -= (dim < 0 ? dim + dims : dim) < layout.dim ? 1 : 0;
      }
      return run_as(result);
    }
    // A dimension that is named is a reduction of each example, even where there is one.
    if (has_argument("dim") && argument("dim")->isIntList() ? !argument("dim")->toIntVector().empty()
                                                            : has_argument("dim"))
      refuse();
    run_to_number(/*is_loss=*/false);
  }

  /// To one number of this rank's positions, which is combined over ranks as a loss or a metric is.
  void run_to_number(bool is_loss) {
    if (!is_loss && present_unit != nullptr) refuse();
    call_on_parts();
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i)
      if (stack_[i].isTensor() && stack_[i].toTensor().dim() != 0) refuse();
  }

  // ---- Losses

  void run_loss(const ContextLayout& of_each) {
    const c10::IValue* const reduction = argument("reduction");
    if (reduction != nullptr && reduction->toInt() == at::Reduction::None) return run_as(of_each);
    run_to_number(/*is_loss=*/true);
  }

  void run_class_loss() {
    const ContextLayout* const own = layout_of_argument(0);
    if (own == nullptr) refuse();
    const ContextLayout layout = *own;
    const at::Tensor& scores = argument(0).toTensor();
    const int64_t classes = scores.dim() > 1 ? 1 : 0;
    if (layout.dim == classes) refuse();
    ContextLayout of_each = layout;
    if (layout.dim > classes) --of_each.dim;
    const at::Tensor target = argument(1).toTensor();
    const ContextLayout wanted = target.dim() == scores.dim() ? layout : of_each;
    if (const ContextLayout* const of_target = layout_of_argument(1)) {
      if (*of_target != wanted) refuse();
    } else {
      argument(1) = cut_to_part(target, wanted.dim, wanted, wanted.outer * share_->length * wanted.inner,
                                wanted.outer * share_->part() * wanted.inner);
    }
    const at::Tensor here = local_part(argument(1).toTensor());
    const bool is_mean = argument("reduction")->toInt() == at::Reduction::Mean;
    const bool has_class_weights =
        has_argument("weight") && argument("weight")->isTensor() && argument("weight")->toTensor().defined();
    if (is_mean && has_class_weights) detail::note_uneven_targets();
    const bool may_be_of_none =
        at::isIntegralType(here.scalar_type(), /*includeBool=*/false) && is_mean && has_argument("ignore_index");
    const int64_t ignored = may_be_of_none ? argument("ignore_index")->toInt() : 0;
    run_loss(of_each);
    if (!may_be_of_none) return;
    // Of positions none of which counts the mean is NaN, and a rank would leave the others alone in backward.
    const at::Tensor loss = stack_.back().toTensor();
    const at::Tensor counts = here.ne(ignored);
    stack_.back() = at::where(counts.any(), loss, at::zeros_like(loss));
    if (here.is_cpu() && !counts.all().item<bool>()) detail::note_uneven_targets();
  }

  // ---- Lists

  bool is_list_operator() { return is_one_of(base_, {"cat", "concat", "concatenate", "stack", "broadcast_tensors"}); }
  void run_list() {
    std::vector<at::Tensor> tensors = argument(0).toTensorVector();
    std::optional<ContextLayout> common;
    int64_t dims = 0;
    for (const at::Tensor& tensor : tensors) {
      if (!is_marked(tensor)) continue;
      const ContextLayout layout = require_layout(tensor);
      if (common && *common != layout) refuse();
      common = layout;
      dims = tensor.dim();
    }
    if (!common) refuse();
    if (base_ == "broadcast_tensors") {
      if (!std::ranges::all_of(tensors, [&](const at::Tensor& one) { return is_marked(one) && one.dim() == dims; }))
        refuse();
      return run_as(*common);
    }
    const bool stacks = base_ == "stack";
    int64_t dim = argument("dim")->toInt();
    if (dim < 0) dim += dims + (stacks ? 1 : 0);
    if (!stacks && dim == common->dim) refuse();
    for (at::Tensor& tensor : tensors)
      if (!is_marked(tensor)) {
        if (tensor.dim() != dims) refuse();
        tensor = cut_to_part(tensor, common->dim, *common, common->outer * share_->length * common->inner,
                             common->outer * share_->part() * common->inner);
      }
    argument(0) = tensors;
    if (stacks && dim <= common->dim) ++common->dim;
    run_as(*common);
  }

  // ---- Features

  bool is_before_norm(const ContextLayout& layout) {
    const c10::IValue* const shape = argument("normalized_shape");
    return shape != nullptr &&
           layout.dim < argument(0).toTensor().dim() - static_cast<int64_t>(shape->toIntVector().size());
  }
  bool is_product() const { return is_one_of(base_, {"linear", "matmul", "mm"}); }
  bool is_product_of_features(const ContextLayout& layout) {
    const at::Tensor& weight = argument(1).toTensor();
    return !is_marked(weight) && weight.dim() <= 2 && weight.dim() >= 1 &&
           layout.dim < argument(0).toTensor().dim() - 1;
  }

  void run_gather(const ContextLayout& layout) {
    const ContextLayout* const of_indices = layout_of_argument(2);
    if (of_indices == nullptr || *of_indices != layout) refuse();
    run_as(layout);
  }

  // ---- Dropout and attention

  /// The mask is that of all positions, as one device draws it.
  void run_dropout() {
    const at::Tensor part = argument(0).toTensor();
    const double p = argument(1).toDouble();
    const ContextLayout layout = *layout_of_argument(0);
    if (!argument(2).toBool() || p == 0) {
      if (is_written(0)) return operation_.callBoxed(&stack_);
      return run_as(layout);
    }
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[static_cast<size_t>(layout.dim)] = layout.outer * share_->length * layout.inner;
    at::Tensor mask;
    {
      const at::NoGradGuard no_grad;
      const at::Tensor ones = at::ones(sizes, part.options().requires_grad(false));
      mask = part_at(at::dropout(ones, p, /*train=*/true), *share_, layout).contiguous();
    }
    at::Tensor result;
    if (is_written(0)) {
      part.mul_(mask);
      result = part;
    } else {
      result = with_context_mark(without_context_mark(part) * mask, share_, layout);
    }
    torch::jit::drop(stack_, schema_.arguments().size());
    stack_.emplace_back(std::move(result));
  }

  /// Whole, of any sizes that a mask may have.
  at::Tensor whole_mask(const at::Tensor& mask, int64_t queries, int64_t keys) {
    const at::Tensor whole = is_marked(mask) ? detail::full_context(mask) : mask;
    const auto fits = [](int64_t size, int64_t wanted) { return size == wanted || size == 1; };
    if (whole.dim() < 2 || !fits(whole.size(-2), queries) || !fits(whole.size(-1), keys))
      throw Error("context", fmt::format("{}the mask of attention is {}; valid over {} ranks: one of all {} queries "
                                         "and {} keys; hint: levin::full_sequence_length(x) instead of x.size(1)",
                                         where(), c10::str(whole.sizes()), share_->group->world_size(), queries, keys));
    return whole;
  }

  void run_attention() {
    const at::Tensor query = argument(0).toTensor();
    const at::Tensor key = argument(1).toTensor();
    const at::Tensor value = argument(2).toTensor();
    const bool is_self = is_marked(key) && is_marked(value);
    if (!is_marked(query) || is_marked(key) != is_marked(value)) refuse();
    for (const size_t i : {size_t{0}, size_t{1}, size_t{2}})
      if (const ContextLayout* const layout = layout_of_argument(i))
        if (*layout != ContextLayout{argument(i).toTensor().dim() - 2, 1, 1}) refuse();
    if (query.dim() != 4)
      throw Error("context", fmt::format("{}attention over a sequence that is cut over {} ranks is given queries {}; "
                                         "valid: [examples, heads, positions, features]",
                                         where(), share_->group->world_size(), c10::str(query.sizes())));
    detail::ContextAttention attention{.query = without_context_mark(query),
                                       .key = is_self ? without_context_mark(key) : key,
                                       .value = is_self ? without_context_mark(value) : value,
                                       .dropout = argument("dropout_p")->toDouble(),
                                       .causal = argument("is_causal")->toBool(),
                                       .scale = argument("scale")->toOptional<double>(),
                                       .grouped = argument("enable_gqa")->toBool()};
    const at::Tensor mask = has_argument("attn_mask") ? argument("attn_mask")->toTensor() : at::Tensor();
    if (mask.defined()) attention.mask = whole_mask(mask, share_->length, is_self ? share_->length : key.size(-2));
    at::Tensor output;
    if (is_self) {
      output = share_->method == ContextMethod::kRing ? detail::attend_in_ring(attention, share_->group)
                                                      : detail::attend_over_context(attention, share_->group);
      exchanges.fetch_add(1, std::memory_order_relaxed);
    } else {
      output = attend_to_others(attention);
    }
    torch::jit::drop(stack_, schema_.arguments().size());
    stack_.emplace_back(with_context_mark(output, share_, {2, 1, 1}));
  }

  /// Queries treat keys that every rank has by themselves.
  at::Tensor attend_to_others(detail::ContextAttention& attention) {
    if (attention.causal || attention.dropout > 0)
      throw Error("context", fmt::format("{}attention to keys that are not cut over ranks is {}; valid: neither "
                                         "is_causal nor dropout_p; hint: a mask instead, or context left out",
                                         where(), attention.causal ? "causal" : "given dropout"));
    if (attention.mask && attention.mask->size(-2) != 1)
      attention.mask = part_at(*attention.mask, *share_, {attention.mask->dim() - 2, 1, 1});
    return at::scaled_dot_product_attention(attention.query, attention.key, attention.value, attention.mask, 0, false,
                                            attention.scale, attention.grouped);
  }

  std::string where() const { return present_unit == nullptr ? "" : fmt::format("in the unit '{}', ", *present_unit); }

  [[noreturn]] void refuse() const {
    throw Error("context",
                fmt::format("{}{} would mix the {} positions of a sequence of which this rank has {}; valid: operators "
                            "that treat each position by itself, scaled_dot_product_attention, and losses; hint: "
                            "levin::full_sequence(x) gives all positions, levin::local_part(x) this rank's as an "
                            "ordinary tensor",
                            where(), name_, share_->length, share_->part()));
  }

  const c10::OperatorHandle& operation_;
  torch::jit::Stack& stack_;
  const c10::FunctionSchema& schema_;
  size_t first_;
  std::shared_ptr<const ContextShare> share_;
  std::string name_;
  std::string_view base_;
  std::unordered_map<size_t, ContextLayout> found_ = {};
};

bool run_on_context(const c10::OperatorHandle& operation, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (!detail::is_forward() || LocalValuesScope::is_active()) return false;
  std::optional<ContextMark> mark;
  detail::for_each_tensor_argument(operation.schema().arguments().size(), *stack, [&](const at::Tensor& tensor) {
    if (!mark) mark = ContextMarks::instance().find(tensor);
  });
  if (!mark) return false;
  ContextOperator(operation, *stack, std::move(*mark)).run();
  return true;
}

void install_context() {
  static std::once_flag once;
  std::call_once(once, [] { detail::add_operator_handler(run_on_context); });
}

}  // namespace

at::Tensor cut_context(const at::Tensor& tensor, int64_t dim, const std::shared_ptr<Collective>& group,
                       ContextMethod method) {
  const int64_t ranks = group->world_size();
  LEVIN_CHECK(dim >= 0 && dim < tensor.dim() && tensor.size(dim) >= 2 * ranks &&
                  tensor.size(dim) % (method == ContextMethod::kRing ? 2 * ranks : ranks) == 0,
              "ranks have equal parts of a sequence, of two positions at least");
  install_context();
  const c10::impl::ExcludeDispatchKeyGuard below(detail::kBehaviourKey);
  const auto share =
      std::make_shared<const ContextShare>(ContextShare{.group = group, .length = tensor.size(dim), .method = method});
  const ContextLayout layout{dim, 1, 1};
  return with_context_mark(part_at(tensor, *share, layout).clone(at::MemoryFormat::Contiguous), share, layout);
}

bool is_context_part(const at::Tensor& tensor) { return ContextMarks::instance().find(tensor).has_value(); }

at::Tensor local_part(const at::Tensor& tensor) {
  if (!is_context_part(tensor)) return tensor;
  const c10::impl::ExcludeDispatchKeyGuard below(detail::kBehaviourKey);
  return ordinary(tensor);
}

namespace detail {

at::Tensor full_context(const at::Tensor& part) {
  exchanges.fetch_add(1, std::memory_order_relaxed);
  const auto mark = ContextMarks::instance().find(part);
  LEVIN_CHECK(mark.has_value(), "it is a part");
  const auto layout = layout_of(part, *mark);
  if (!layout)
    throw Error("context",
                fmt::format("a tensor {} does not have the {} positions of this rank, and cannot be gathered",
                            c10::str(part.sizes()), mark->share->part()));
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  const at::Tensor own = without_context_mark(part);
  // [..., outer, positions, inner, ...]
  const at::Tensor apart = own.unflatten(layout->dim, {layout->outer, mark->share->part() * layout->inner});
  return GatherContext::apply(apart, mark->share, layout->dim + 1).flatten(layout->dim, layout->dim + 1);
}

int64_t full_context_length(const at::Tensor& part) { return ContextMarks::instance().find(part)->share->length; }

ContextUnitScope::ContextUnitScope(const std::string* path) : outer_(std::exchange(present_unit, path)) {}
ContextUnitScope::~ContextUnitScope() { present_unit = outer_; }

at::Tensor run_on_context_part(const at::Tensor& part, const std::string& name,
                               const std::function<at::Tensor(const at::Tensor& part)>& function) {
  const auto mark = ContextMarks::instance().find(part);
  const auto layout = layout_of(part, *mark);
  at::Tensor result;
  {
    const at::Tensor own = local_part(part);
    const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
    result = function(own);
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  const bool is_kept = layout && layout->dim < result.dim() && result.size(layout->dim) == part.size(layout->dim) &&
                       (layout->dim + 1 < part.dim() || result.dim() > part.dim());
  if (!is_kept)
    throw Error(
        "context",
        fmt::format("the layer of the weight '{}' makes {} of {}, and would mix the {} positions of a "
                    "sequence of which this rank has {}; valid: positions before the features",
                    name, c10::str(result.sizes()), c10::str(part.sizes()), mark->share->length, mark->share->part()));
  return with_context_mark(result, mark->share, *layout);
}

at::Tensor like_context_part(const at::Tensor& tensor, const at::Tensor& part) {
  const auto mark = ContextMarks::instance().find(part);
  const auto layout = layout_of(part, *mark);
  LEVIN_CHECK(layout.has_value() && tensor.sizes() == part.sizes(), "each position has its own");
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  return with_context_mark(tensor, mark->share, *layout);
}

int64_t context_attention_calls() { return exchanges.load(std::memory_order_relaxed); }
void note_uneven_targets() { has_uneven_targets = true; }
bool take_uneven_targets() { return std::exchange(has_uneven_targets, false); }

}  // namespace detail
}  // namespace levin
