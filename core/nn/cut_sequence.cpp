#include <levin/core/nn/cut_sequence.h>

#include <levin/core/base/detached_alias.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/forward_context.h>
#include <levin/core/nn/kept_group.h>
#include <levin/core/nn/operator_kinds.h>
#include <levin/core/nn/saved_tensor_scope.h>
#include <levin/core/nn/storage_marks.h>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Edge;
using torch::autograd::variable_list;

using detail::gives_shape_of_first;
using detail::is_about_the_tensor;
using detail::is_element_wise_operator;
using detail::is_norm_of_features;
using detail::is_one_of;

using SequenceGroup = std::shared_ptr<Collective>;

void refuse_second_derivatives_of_parts() {
  if (c10::GradMode::is_enabled())
    throw Error("tensor",
                "gradients of gradients do not pass through sequences that are cut over ranks; hint: "
                "sequence_parallel: false, and layers that they pass through left out of the plan");
}

// ---- Tensors and their parts

at::Tensor part_of(const SequenceGroup& group, const at::Tensor& all) { return DimensionCut(group, 1).part_of(all); }
at::Tensor all_of(const SequenceGroup& group, const at::Tensor& part) { return DimensionCut(group, 1).whole_of(part); }

/// This rank's part of the sum over the ranks.
at::Tensor part_of_sum(Collective& group, const at::Tensor& term) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  const at::Tensor by_rank = term.detach().unflatten(1, {group.world_size(), -1}).movedim(1, 0).contiguous();
  at::Tensor part = at::empty(by_rank.sizes().slice(1), by_rank.options().requires_grad(false));
  group.reduce_scatter(part.view({-1}), by_rank.view({-1}), ReduceOp::kSum)->wait();
  return part;
}

void keep_group(AutogradContext* context, const SequenceGroup& group) { detail::keep_group(*context, group); }

SequenceGroup kept_group(AutogradContext* context) {
  refuse_second_derivatives_of_parts();
  return detail::kept_group(*context);
}

/// What is identical on every rank, to parts.
struct CutPositions : torch::autograd::Function<CutPositions> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& all, const SequenceGroup& group) {
    keep_group(context, group);
    return part_of(group, all);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {all_of(kept_group(context), gradients[0]), at::Tensor()};
  }
};

/// Parts, to what is identical on every rank.
struct GatherPositions : torch::autograd::Function<GatherPositions> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, const SequenceGroup& group) {
    keep_group(context, group);
    return all_of(group, part);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {part_of(kept_group(context), gradients[0]), at::Tensor()};
  }
};

/// Parts, to what each rank computes something else of.
struct GatherForLayer : torch::autograd::Function<GatherForLayer> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, const SequenceGroup& group) {
    keep_group(context, group);
    return all_of(group, part);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {part_of_sum(*kept_group(context), gradients[0]), at::Tensor()};
  }
};

/// Terms of a sum, to its parts.
struct ScatterSum : torch::autograd::Function<ScatterSum> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& term, const SequenceGroup& group) {
    keep_group(context, group);
    return part_of_sum(*group, term);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {all_of(kept_group(context), gradients[0]), at::Tensor()};
  }
};

/// Adds the gradients of tensors without positions up over the ranks, of which each has those of its positions: all in
/// one reduction, once backward has come to each of them.
class GradientSums final : public torch::autograd::Node {
 public:
  explicit GradientSums(SequenceGroup group) : group_(std::move(group)) {}
  static std::shared_ptr<GradientSums> make(const SequenceGroup& group) {
    return {new GradientSums(group), torch::autograd::deleteNode};
  }

  /// Returns the tensor, whose gradient goes through the sum.
  static at::Tensor alias_of(const std::shared_ptr<GradientSums>& sums, const at::Tensor& tensor) {
    if (!tensor.is_leaf()) {
      // A node whose ends have ends of their own gets them before it is used.
      const auto single = make(sums->group_);
      single->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
      return with_edge(tensor, Edge(single, single->add_input_metadata(tensor)));
    }
    const Edge edge = torch::autograd::impl::gradient_edge(tensor);
    auto& ends = sums->next_edges_;
    const auto found = std::ranges::find(ends, edge);
    if (found != ends.end()) return with_edge(tensor, Edge(sums, static_cast<uint32_t>(found - ends.begin())));
    ends.push_back(edge);
    return with_edge(tensor, Edge(sums, sums->add_input_metadata(tensor)));
  }

  variable_list apply(variable_list&& gradients) override {
    refuse_second_derivatives_of_parts();
    variable_list sums(gradients.size());
    std::vector<size_t> left;
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) left.push_back(i);
    while (!left.empty()) {
      const at::TensorOptions kind = gradients[left.front()].options();
      std::vector<at::Tensor> flat;
      std::vector<size_t> here;
      std::vector<size_t> others;
      for (const size_t i : left) {
        const bool is_alike = gradients[i].dtype() == kind.dtype() && gradients[i].device() == kind.device();
        (is_alike ? here : others).push_back(i);
        if (is_alike) flat.push_back(gradients[i].reshape({-1}));
      }
      const at::Tensor all = at::cat(flat);
      group_->all_reduce(all, ReduceOp::kSum)->wait();
      int64_t begin = 0;
      for (const size_t i : here) {
        // Memory of their own: one of them would keep that of all.
        sums[i] = all.narrow(0, begin, gradients[i].numel()).view(gradients[i].sizes()).clone();
        begin += gradients[i].numel();
      }
      left = std::move(others);
    }
    return sums;
  }

 private:
  static at::Tensor with_edge(const at::Tensor& tensor, Edge edge) {
    at::Tensor alias = detached_alias(tensor);
    torch::autograd::impl::set_gradient_edge(alias, std::move(edge));
    return alias;
  }

  SequenceGroup group_;
};

// ---- Marks

/// The sequence that a tensor [N, T / ranks, ...] is a part of.
struct SequenceShare {
  SequenceGroup group;
  int64_t length = 0;  ///< T
  std::shared_ptr<GradientSums> sums = GradientSums::make(group);

  int64_t part() const { return length / group->world_size(); }
};

using Share = std::shared_ptr<const SequenceShare>;

using SequenceParts = detail::StorageMarks<Share>;

/// Of a part; nullptr for what is none.
Share share_of(const at::Tensor& tensor) { return SequenceParts::instance().find(tensor).value_or(nullptr); }

at::Tensor with_mark(const at::Tensor& part, const Share& share) {
  at::Tensor marked = detail::alias_with_behaviour_key(part, /*key=*/true);
  SequenceParts::instance().set(marked, share);
  return marked;
}

/// Autograd saves tensors without the key, which backward then finds ordinary.
at::Tensor without_mark(const at::Tensor& part) {
  return part.is_leaf() && part.requires_grad() ? part : detail::alias_with_behaviour_key(part, /*key=*/false);
}

// ---- Units

/// Activations that were gathered for layers, from when they are first needed in backward until each layer had them.
struct GatheredAgain {
  SequenceGroup group;
  int64_t savers = 0;
  int64_t left = 0;
  at::Tensor activations = {};

  at::Tensor take(const at::Tensor& part) {
    if (!activations.defined()) {
      activations = all_of(group, part);
      left = savers;
    }
    at::Tensor all = activations;
    if (--left <= 0) activations.reset();
    return all;
  }
};

/// What the layers of a unit's call share.
struct PresentSequence {
  Share share;  ///< nullptr: all positions
  std::string unit;
  at::Tensor taken = {};     ///< the newest part that a layer took
  uint32_t version = 0;      ///< of its memory then
  at::Tensor part = {};      ///< as it was gathered, without a graph
  at::Tensor gathered = {};  ///< of it
  std::shared_ptr<GatheredAgain> again = {};
};

thread_local std::shared_ptr<PresentSequence> present;

void find_again_in_recomputation() {
  static std::once_flag once;
  std::call_once(once, [] {
    add_forward_context([]() -> ForwardContext {
      if (present == nullptr) return {};
      return [then = PresentSequence{.share = present->share, .unit = present->unit}]() -> std::shared_ptr<void> {
        auto former = std::exchange(present, std::make_shared<PresentSequence>(then));
        return {static_cast<void*>(nullptr), [former](void*) { present = former; }};
      };
    });
  });
}

// ---- Operators

/// Works along `dim` of its first argument, or of a list.
bool is_along_dimension(std::string_view name) {
  return is_one_of(name, {"mean",   "sum",   "var",    "std",       "amax",    "amin",
                          "prod",   "all",   "any",    "logsumexp", "softmax", "log_softmax",
                          "cumsum", "glu",   "chunk",  "split",     "unbind",  "split_with_sizes",
                          "select", "slice", "narrow", "unflatten", "squeeze", "linalg_vector_norm",
                          "cat",    "norm",  "argmax", "argmin",    "max",     "min"});
}

class OperatorOnParts {
 public:
  OperatorOnParts(const c10::OperatorHandle& operation, torch::jit::Stack& stack, Share share)
      : operation_(operation),
        stack_(stack),
        schema_(operation.schema()),
        first_(stack.size() - schema_.arguments().size()),
        share_(std::move(share)),
        name_(schema_.name()),
        base_(name_) {
    if (base_.starts_with("aten::")) base_.remove_prefix(std::string_view("aten::").size());
    if (base_.ends_with('_') && !is_about_the_tensor(base_)) base_.remove_suffix(1);
  }

  void run() {
    const c10::impl::ExcludeDispatchKeyGuard below(detail::kBehaviourKey);
    if (is_about_the_tensor(base_)) return operation_.callBoxed(&stack_);
    if (base_ == "dropout") return run_dropout();
    if (!runs_on_parts()) return run_on_all();
    if (!detail::gives_view(operation_)) replace_parts([](const at::Tensor& part) { return without_mark(part); });
    operation_.callBoxed(&stack_);
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) mark(stack_[i]);
  }

 private:
  c10::IValue& argument(size_t index) { return stack_[first_ + index]; }
  const c10::IValue* argument(std::string_view name) const {
    for (size_t i = 0; i < schema_.arguments().size(); ++i)
      if (schema_.arguments()[i].name() == name) return &stack_[first_ + i];
    return nullptr;
  }
  bool is_part(const at::Tensor& tensor) const { return share_of(tensor) != nullptr; }
  bool is_written(size_t index) const {
    const auto* const alias = schema_.arguments()[index].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  template <class Visit>
  void for_each_tensor_here(Visit&& visit) {
    for (size_t i = 0; i < schema_.arguments().size(); ++i)
      if (argument(i).isTensor() && argument(i).toTensor().defined()) visit(i, argument(i).toTensor());
  }
  /// Replaces the parts that are not written to.
  template <class Replace>
  void replace_parts(Replace&& replace) {
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      c10::IValue& value = argument(i);
      if (value.isTensor()) {
        if (is_part(value.toTensor()) && !is_written(i)) value = replace(value.toTensor());
      } else if (value.isTensorList()) {
        std::vector<at::Tensor> tensors = value.toTensorVector();
        for (at::Tensor& tensor : tensors)
          if (is_part(tensor)) tensor = replace(tensor);
        value = tensors;
      } else if (value.isOptionalTensorList()) {
        std::vector<std::optional<at::Tensor>> tensors = value.toOptionalTensorVector();
        for (auto& tensor : tensors)
          if (tensor && is_part(*tensor)) tensor = replace(*tensor);
        value = tensors;
      }
    }
  }
  void mark(c10::IValue& value) {
    const auto mark_tensor = [&](const at::Tensor& tensor) {
      return tensor.defined() && tensor.has_storage() && !detail::has_behaviour_key(tensor) ? with_mark(tensor, share_)
                                                                                            : tensor;
    };
    if (value.isTensor()) value = mark_tensor(value.toTensor());
    if (!value.isTensorList()) return;
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = mark_tensor(tensor);
    value = tensors;
  }

  bool is_in_form(const at::Tensor& part) const { return part.dim() >= 2 && part.size(1) == share_->part(); }

  bool runs_on_parts() {
    if (is_element_wise_operator(base_)) return prepare_element_wise();
    if (is_along_dimension(base_)) return works_behind_positions();
    if (!argument(0).isTensor() || !is_part(argument(0).toTensor())) return false;
    const at::Tensor& part = argument(0).toTensor();
    if (!is_in_form(part)) return false;
    if (gives_shape_of_first(base_)) return true;
    if (is_norm_of_features(base_)) return prepare_norm(part);
    if (base_ == "linear" || base_ == "matmul") return prepare_product(part);
    if (base_ == "transpose") return is_behind("dim0", part.dim()) && is_behind("dim1", part.dim());
    if (base_ == "unsqueeze") return is_behind("dim", part.dim() + 1);
    if (base_ == "flatten") return is_behind("start_dim", part.dim());
    if (is_one_of(base_, {"view", "reshape", "expand"})) return keeps_positions(part);
    return false;
  }

  /// Whether an argument names dimensions behind that of the positions alone.
  bool is_behind(std::string_view name, int64_t dims) const {
    const c10::IValue* const value = argument(name);
    if (value == nullptr) return false;
    const auto is_one_behind = [&](int64_t dim) { return dim >= 2 || (dim < 0 && dim + dims >= 2); };
    if (value->isInt()) return is_one_behind(value->toInt());
    if (!value->isIntList()) return false;
    const auto list = value->toIntVector();
    return !list.empty() && std::ranges::all_of(list, is_one_behind);
  }

  bool works_behind_positions() {
    std::vector<at::Tensor> parts;
    if (argument(0).isTensorList())
      parts = argument(0).toTensorVector();
    else if (argument(0).isTensor())
      parts.push_back(argument(0).toTensor());
    return !parts.empty() && is_behind("dim", parts.front().dim()) &&
           std::ranges::all_of(parts, [&](const at::Tensor& part) { return is_part(part) && is_in_form(part); });
  }

  /// The sizes that a view is to have begin with those of the part.
  bool keeps_positions(const at::Tensor& part) const {
    const c10::IValue* value = argument("size");
    if (value == nullptr) value = argument("shape");
    if (value == nullptr || !value->isIntList()) return false;
    std::vector<int64_t> sizes = value->toIntVector();
    if (sizes.size() < 2) return false;
    if (base_ == "expand") return sizes.size() == static_cast<size_t>(part.dim()) && is_or_stays(sizes, part);
    int64_t known = 1;
    for (const int64_t size : sizes) known *= size < 0 ? 1 : size;
    for (int64_t& size : sizes)
      if (size < 0) size = known == 0 ? 0 : part.numel() / known;
    return sizes[0] == part.size(0) && sizes[1] == part.size(1);
  }
  static bool is_or_stays(const std::vector<int64_t>& sizes, const at::Tensor& part) {
    return (sizes[0] == -1 || sizes[0] == part.size(0)) && (sizes[1] == -1 || sizes[1] == part.size(1));
  }

  /// What has no positions meets those of this rank alone.
  at::Tensor with_summed_gradient(const at::Tensor& tensor) const {
    return c10::GradMode::is_enabled() && tensor.requires_grad() ? GradientSums::alias_of(share_->sums, tensor)
                                                                 : tensor;
  }

  bool prepare_norm(const at::Tensor& part) {
    const c10::IValue* const shape = argument("normalized_shape");
    if (shape == nullptr || static_cast<int64_t>(shape->toIntVector().size()) > part.dim() - 2) return false;
    for_each_tensor_here([&](size_t i, const at::Tensor& tensor) {
      if (i > 0) argument(i) = with_summed_gradient(tensor);
    });
    return true;
  }

  bool prepare_product(const at::Tensor& part) {
    const at::Tensor& other = argument(1).toTensor();
    if (part.dim() < 3 || other.dim() > 2 || is_part(other)) return false;
    for_each_tensor_here([&](size_t i, const at::Tensor& tensor) {
      if (i > 0) argument(i) = with_summed_gradient(tensor);
    });
    return true;
  }

  bool prepare_element_wise() {
    int64_t dims = 0;
    for_each_tensor_here([&](size_t, const at::Tensor& tensor) { dims = std::max(dims, tensor.dim()); });
    bool fits = true;
    for_each_tensor_here([&](size_t i, const at::Tensor& tensor) {
      fits &= is_part(tensor) ? tensor.dim() == dims && is_in_form(tensor) : !is_written(i);
    });
    if (!fits) return false;
    for_each_tensor_here([&](size_t i, const at::Tensor& tensor) {
      if (is_part(tensor)) return;
      const int64_t positions = 1 - (dims - tensor.dim());
      if (positions < 0 || tensor.size(positions) == 1) {
        argument(i) = with_summed_gradient(tensor);
        return;
      }
      if (tensor.size(positions) == share_->length) {
        // Its positions may be its first dimension.
        const at::Tensor all = positions == 1 ? tensor : tensor.unsqueeze(0);
        const at::Tensor part = CutPositions::apply(all, share_->group);
        argument(i) = positions == 1 ? part : part.squeeze(0);
      } else if (tensor.size(positions) == share_->part()) {
        throw Error("tensor",
                    fmt::format("{}{} computes with {} of the {} positions of the sequence, which is cut over "
                                "{} ranks, and with a tensor {} that was made from the size of this part; "
                                "valid: sizes of all positions; hint: levin::full_sequence_length(x) instead "
                                "of x.size(1), or sequence_parallel: false",
                                where(), name_, share_->part(), share_->length, share_->group->world_size(),
                                c10::str(tensor.sizes())));
      }
    });
    return true;
  }

  /// The mask is that of all positions, as one device draws it.
  void run_dropout() {
    const at::Tensor part = argument(0).toTensor();
    const double p = argument(1).toDouble();
    if (!argument(2).toBool() || p == 0) return operation_.callBoxed(&stack_);
    if (!is_in_form(part)) return run_on_all();
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[1] = share_->length;
    at::Tensor mask;
    {
      const at::NoGradGuard no_grad;
      const at::Tensor ones = at::ones(sizes, part.options().requires_grad(false));
      mask = part_of(share_->group, at::dropout(ones, p, /*train=*/true));
    }
    at::Tensor result;
    if (is_written(0)) {
      part.mul_(mask);
      result = part;
    } else {
      result = with_mark(without_mark(part) * mask, share_);
    }
    torch::jit::drop(stack_, schema_.arguments().size());
    stack_.emplace_back(std::move(result));
  }

  std::string where() const { return present == nullptr ? "" : fmt::format("in the unit '{}', ", present->unit); }

  void run_on_all() {
    for (size_t i = 0; i < schema_.arguments().size(); ++i)
      if (is_written(i) && argument(i).isTensor() && is_part(argument(i).toTensor()))
        throw Error("tensor", fmt::format("{}{} writes to activations of which this rank has {} of {} positions, and "
                                          "needs all; valid: element-wise operators in place; hint: the operator that "
                                          "gives a new tensor, or sequence_parallel: false",
                                          where(), name_, share_->part(), share_->length));
    if (present != nullptr)
      log::rank_zero_warning_once(
          fmt::format("[tensor] in the unit '{}', {} needs the whole sequence, which is all-gathered for it; hint: "
                      "sequence_parallel saves memory where a unit treats each position by itself outside of its "
                      "column and row layers",
                      present->unit, name_));
    replace_parts([](const at::Tensor& part) { return full_sequence(part); });
    operation_.callBoxed(&stack_);
  }

  const c10::OperatorHandle& operation_;
  torch::jit::Stack& stack_;
  const c10::FunctionSchema& schema_;
  size_t first_;
  Share share_;
  std::string name_;
  std::string_view base_;
};

bool run_on_parts(const c10::OperatorHandle& operation, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (!detail::is_forward()) return false;
  Share share;
  detail::for_each_tensor_argument(operation.schema().arguments().size(), *stack, [&](const at::Tensor& tensor) {
    if (share == nullptr) share = share_of(tensor);
  });
  if (share == nullptr) return false;
  OperatorOnParts(operation, *stack, std::move(share)).run();
  return true;
}

void install_sequences() {
  static std::once_flag once;
  std::call_once(once, [] { detail::add_operator_handler(run_on_parts); });
  find_again_in_recomputation();
}

// ---- What layers save

/// Saves the part instead of what was gathered, and anything else as the scope around it does.
class PartSaver final : public SavedTensorScope {
 public:
  PartSaver(SavedTensorScope* outer, at::Tensor part, const at::Tensor& all, std::shared_ptr<GatheredAgain> again)
      : outer_(outer),
        part_(std::move(part)),
        storage_(all.storage().unsafeGetStorageImpl()),
        again_(std::move(again)) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_keeper() override {
    return std::make_unique<Keeper>(outer_ == nullptr ? nullptr : outer_->make_keeper(), part_, storage_, again_);
  }

 private:
  class Keeper final : public torch::autograd::SavedVariableHooks {
   public:
    Keeper(std::unique_ptr<SavedVariableHooks> outer, at::Tensor part, const void* storage,
           std::shared_ptr<GatheredAgain> again)
        : outer_(std::move(outer)), part_(std::move(part)), storage_(storage), again_(std::move(again)) {}

    void call_pack_hook(const at::Tensor& tensor) override {
      is_gathered_ = tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == storage_;
      const at::Tensor saved = is_gathered_ ? std::exchange(part_, at::Tensor()) : tensor.detach();
      part_.reset();
      if (is_gathered_) {
        sizes_ = tensor.sizes().vec();
        strides_ = tensor.strides().vec();
        offset_ = tensor.storage_offset();
        ++again_->savers;
      } else {
        again_.reset();
      }
      if (outer_ != nullptr)
        outer_->call_pack_hook(saved);
      else
        saved_ = saved;
      version_ = saved.is_inference() ? 0 : saved._version();
    }
    at::Tensor call_unpack_hook() override {
      if (saved_.defined() && !saved_.is_inference() && saved_._version() != version_)
        throw Error("tensor",
                    "one of the tensors that a layer needs for its gradient was modified in place afterwards; hint: "
                    "use the operation that gives a new tensor");
      const at::Tensor tensor = outer_ != nullptr ? outer_->call_unpack_hook() : saved_;
      return is_gathered_ ? again_->take(tensor).as_strided(sizes_, strides_, offset_) : tensor;
    }

   private:
    std::unique_ptr<SavedVariableHooks> outer_;
    at::Tensor part_;
    const void* storage_;
    std::shared_ptr<GatheredAgain> again_;
    at::Tensor saved_;
    uint32_t version_ = 0;
    bool is_gathered_ = false;
    std::vector<int64_t> sizes_;
    std::vector<int64_t> strides_;
    int64_t offset_ = 0;
  };

  SavedTensorScope* outer_;
  at::Tensor part_;
  const void* storage_;
  std::shared_ptr<GatheredAgain> again_;
};

/// As the product would: what is gathered is then what it saves, in half the bytes.
at::Tensor in_type_of_autocast(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device) || tensor.scalar_type() != at::kFloat) return tensor;
  return tensor.to(at::autocast::get_autocast_dtype(device));
}

}  // namespace

at::Tensor cut_sequence(const at::Tensor& activations, const std::shared_ptr<Collective>& group) {
  LEVIN_CHECK(activations.dim() >= 2 && activations.size(1) % group->world_size() == 0,
              "ranks have equal parts of a sequence");
  install_sequences();
  const c10::impl::ExcludeDispatchKeyGuard below(detail::kBehaviourKey);
  const auto share =
      std::make_shared<const SequenceShare>(SequenceShare{.group = group, .length = activations.size(1)});
  return with_mark(CutPositions::apply(activations, group), share);
}

bool is_cut_sequence(const at::Tensor& tensor) { return share_of(tensor) != nullptr; }

at::Tensor full_sequence(const at::Tensor& tensor) {
  if (is_context_part(tensor)) return detail::full_context(tensor);
  const Share share = share_of(tensor);
  if (share == nullptr) return tensor;
  const c10::impl::ExcludeDispatchKeyGuard below(detail::kBehaviourKey);
  return GatherPositions::apply(without_mark(tensor), share->group);
}

int64_t full_sequence_length(const at::Tensor& tensor) {
  if (is_context_part(tensor)) return detail::full_context_length(tensor);
  const Share share = share_of(tensor);
  return share == nullptr ? tensor.size(1) : share->length;
}

SequenceScope::SequenceScope(const at::Tensor& activations, std::string unit) : former_(present) {
  const Share former = share_of(activations);
  Share own;
  if (former != nullptr) {
    // Gradients of what this call uses are added up together.
    own = std::make_shared<const SequenceShare>(SequenceShare{.group = former->group, .length = former->length});
    SequenceParts::instance().set(activations, own);
  }
  present = std::make_shared<PresentSequence>(PresentSequence{.share = std::move(own), .unit = std::move(unit)});
}

SequenceScope::~SequenceScope() { present = std::static_pointer_cast<PresentSequence>(former_); }

namespace detail {

GatheredSequence gather_for_layer(const at::Tensor& input) {
  const Share share = share_of(input);
  if (share == nullptr) return {input, nullptr};
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  PresentSequence of_this_layer;
  PresentSequence& unit = present != nullptr ? *present : of_this_layer;
  const bool has_gradient = input.requires_grad() && c10::GradMode::is_enabled();
  const uint32_t version = input.is_inference() ? 0 : input._version();
  if (!unit.taken.is_same(input) || unit.version != version || unit.gathered.requires_grad() != has_gradient ||
      input.is_inference()) {
    const at::Tensor part = in_type_of_autocast(without_mark(input));
    unit.taken = input;
    unit.version = version;
    unit.part = part.detach();
    unit.gathered = GatherForLayer::apply(part, share->group);
    unit.again = std::make_shared<GatheredAgain>(GatheredAgain{.group = share->group});
  }
  GatheredSequence result{unit.gathered, nullptr};
  if (c10::GradMode::is_enabled())
    result.saved = std::make_shared<PartSaver>(SavedTensorScope::current(), unit.part, unit.gathered, unit.again);
  return result;
}

bool has_present_sequence() { return present != nullptr && present->share != nullptr; }

bool is_of_present_sequence(const at::Tensor& sums) {
  return has_present_sequence() && sums.dim() >= 3 && sums.size(1) == present->share->length;
}

at::Tensor scatter_to_present_sequence(const at::Tensor& sums, const at::Tensor& bias) {
  const c10::impl::ExcludeDispatchKeyGuard below(kBehaviourKey);
  const Share& share = present->share;
  at::Tensor part = ScatterSum::apply(sums, share->group);
  if (bias.defined()) {
    const at::Tensor own =
        c10::GradMode::is_enabled() && bias.requires_grad() ? GradientSums::alias_of(share->sums, bias) : bias;
    part = part + own.to(part.scalar_type());
  }
  return with_mark(part, share);
}

}  // namespace detail
}  // namespace levin
