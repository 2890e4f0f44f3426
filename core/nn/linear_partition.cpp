#include <levin/core/nn/linear_partition.h>

#include <levin/core/base/detached_alias.h>
#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/nn/cut_logits.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/kept_group.h>

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <utility>

namespace levin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Group = std::shared_ptr<Collective>;

at::Tensor sum_over(Collective& group, const at::Tensor& tensor) {
  at::Tensor sum = tensor.detach().clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum, ReduceOp::kSum)->wait();
  return sum;
}

void refuse_second_derivatives() {
  if (c10::GradMode::is_enabled())
    throw Error("tensor",
                "gradients of gradients do not pass through layers that are cut over ranks; hint: leave the layers "
                "that they pass through out of the plan");
}

/// The identity, whose gradient is added up over the ranks.
struct SumGradients : torch::autograd::Function<SumGradients> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Group& group) {
    detail::keep_group(*context, group);
    return detached_alias(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives();
    return {sum_over(*detail::kept_group(*context), gradients[0]), at::Tensor()};
  }
};

/// The sum over the ranks, whose gradient is that of each term.
struct Sum : torch::autograd::Function<Sum> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const Group& group) { return sum_over(*group, x); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    refuse_second_derivatives();
    return {gradients[0], at::Tensor()};
  }
};

class PartitionBehaviour : public WeightBehaviour {
 public:
  PartitionBehaviour(Group group, const char* what) : group_(std::move(group)), what_(what) {}

  at::Tensor embedding(const EmbeddingCall& call, const Embedding&) override {
    throw_weight_not_usable(call.name, why_not_elsewhere(), "aten::embedding");
  }
  bool takes_cut_sequences() const override { return true; }
  std::string why_not_elsewhere() const override {
    return fmt::format("is cut by {} over {} ranks", what_, group_->world_size());
  }

 protected:
  const Group& group() const { return group_; }
  /// All positions, with a gradient that is added up over the ranks.
  detail::GatheredSequence input_of(const LinearCall& call) const {
    if (is_cut_sequence(call.input)) return detail::gather_for_layer(call.input);
    return {SumGradients::apply(call.input, group_), nullptr};
  }

 private:
  Group group_;
  const char* what_;
};

class ColumnBehaviour final : public PartitionBehaviour {
 public:
  explicit ColumnBehaviour(Group group) : PartitionBehaviour(std::move(group), "column") {}

  at::Tensor linear(const LinearCall& call, const Linear& next) override {
    const detail::GatheredSequence gathered = input_of(call);
    LinearCall inner = call;
    inner.input = gathered.activations;
    return next(inner);
  }
};

class RowBehaviour final : public PartitionBehaviour {
 public:
  explicit RowBehaviour(Group group) : PartitionBehaviour(std::move(group), "row") {}

  at::Tensor linear(const LinearCall& call, const Linear& next) override {
    if (call.input.dim() > 0 && call.input.size(-1) != call.weight.size(1))
      throw Error("tensor", fmt::format("the weight '{}' is cut by row over {} ranks, and its input has {} features; "
                                        "valid: {}, as the output of a layer that is cut by column; hint: cut the "
                                        "layer before it by column, and infer sizes that its output is viewed by (-1)",
                                        call.name, group()->world_size(), call.input.size(-1), call.weight.size(1)));
    LinearCall inner = call;
    inner.bias = at::Tensor();
    const at::Tensor term = next(inner);
    if (detail::is_of_present_sequence(term)) return detail::scatter_to_present_sequence(term, call.bias);
    const at::Tensor sum = Sum::apply(term, group());
    return call.bias.defined() ? sum + call.bias.to(sum.scalar_type()) : sum;
  }
};

class VocabularyBehaviour final : public PartitionBehaviour {
 public:
  explicit VocabularyBehaviour(Group group) : PartitionBehaviour(std::move(group), "vocabulary") {}

  at::Tensor embedding(const EmbeddingCall& call, const Embedding& next) override {
    if (call.scale_grad_by_freq)
      throw_weight_not_usable(call.name, why_not_elsewhere(), "aten::embedding with scale_grad_by_freq");
    const int64_t rows = call.weight.size(0);
    if (call.indices.device().is_cpu()) {
      const at::Tensor wrong =
          call.indices.masked_select((call.indices < 0).logical_or_(call.indices >= rows * group()->world_size()));
      if (wrong.numel() > 0)
        throw Error("tensor", fmt::format("an index is not in the embedding '{}'; got {}; valid: 0 to {}", call.name,
                                          wrong[0].item<int64_t>(), rows * group()->world_size() - 1));
    }
    const int64_t begin = group()->rank() * rows;
    const at::Tensor local = call.indices - begin;
    const at::Tensor is_elsewhere = (local < 0).logical_or_(local >= rows);
    EmbeddingCall inner = call;
    inner.indices = local.masked_fill(is_elsewhere, 0);
    const bool pads_here = call.padding_idx >= begin && call.padding_idx < begin + rows;
    inner.padding_idx = pads_here ? call.padding_idx - begin : -1;
    return Sum::apply(next(inner).masked_fill(is_elsewhere.unsqueeze(-1), 0), group());
  }

  at::Tensor linear(const LinearCall& call, const Linear& next) override {
    const detail::GatheredSequence gathered = input_of(call);
    LinearCall inner = call;
    inner.input = gathered.activations;
    const int64_t rows = call.weight.size(0);
    return make_cut_logits(
        next(inner),
        {.group = group(), .begin = group()->rank() * rows, .size = rows, .classes = rows * group()->world_size()});
  }
};

}  // namespace

std::shared_ptr<WeightBehaviour> make_vocabulary_behaviour(std::shared_ptr<Collective> group) {
  return std::make_shared<VocabularyBehaviour>(std::move(group));
}

at::Tensor with_summed_gradients(const at::Tensor& tensor, const std::shared_ptr<Collective>& group) {
  return SumGradients::apply(tensor, group);
}

at::Tensor sum_over_ranks(const at::Tensor& tensor, const std::shared_ptr<Collective>& group) {
  return Sum::apply(tensor, group);
}

std::shared_ptr<WeightBehaviour> make_column_behaviour(std::shared_ptr<Collective> group) {
  return std::make_shared<ColumnBehaviour>(std::move(group));
}

std::shared_ptr<WeightBehaviour> make_row_behaviour(std::shared_ptr<Collective> group) {
  return std::make_shared<RowBehaviour>(std::move(group));
}

std::shared_ptr<WeightBehaviour> make_partition_behaviour(TensorCut cut, std::shared_ptr<Collective> group) {
  if (cut == TensorCut::kRow) return make_row_behaviour(std::move(group));
  if (cut == TensorCut::kVocabulary) return make_vocabulary_behaviour(std::move(group));
  return make_column_behaviour(std::move(group));
}

}  // namespace levin
