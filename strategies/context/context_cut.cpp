#include <levin/strategies/context/context_cut.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/nn/context_units.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/uneven_targets.h>
#include <levin/core/nn/weight_behaviour.h>

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

/// Multiples around the length.
std::string lengths_that_would_do(int64_t length, int64_t multiple, int64_t least) {
  const int64_t below = length / multiple * multiple;
  return below >= least ? fmt::format("{} or {}", below, below + multiple) : std::to_string(least);
}

}  // namespace

ContextCut::ContextCut(ContextCutOptions options, std::shared_ptr<Collective> group, torch::nn::Module& module)
    : options_(std::move(options)), group_(std::move(group)), units_(std::make_unique<ContextUnits>(module)) {}

ContextCut::~ContextCut() = default;

// ---- Batches

bool ContextCut::is_first() const { return group_->rank() == 0; }
double ContextCut::share() const { return 1 / static_cast<double>(group_->world_size()); }
int64_t ContextCut::multiple() const { return (options_.method == "ring" ? 2 : 1) * group_->world_size(); }
bool ContextCut::can_divide(int64_t length) const {
  return length % multiple() == 0 && length >= 2 * group_->world_size();
}

int64_t ContextCut::length_of(const Batch& batch) const {
  const auto has_dimension = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() > options_.dimension;
  };
  for (const std::string& name : options_.tensors) {
    const at::Tensor* const found = batch.find(name);
    std::vector<std::string> names;
    for (const auto& [item, tensor] : batch.items())
      if (has_dimension(tensor)) names.push_back(fmt::format("{} {}", item, c10::str(tensor.sizes())));
    if (found == nullptr || !has_dimension(*found))
      throw ConfigError(fmt::format(
          "strategy.context.tensors: '{}' {}; valid: {}", name,
          found == nullptr ? std::string("is not in the batch")
                           : fmt::format("is {}, without a dimension {}", c10::str(found->sizes()), options_.dimension),
          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  if (!options_.tensors.empty()) return batch[options_.tensors.front()].size(options_.dimension);
  for (const auto& [name, tensor] : batch.items())
    if (has_dimension(tensor)) return tensor.size(options_.dimension);
  std::vector<std::string> shapes;
  for (const auto& [name, tensor] : batch.items())
    shapes.push_back(fmt::format("{} {}", name, tensor.defined() ? c10::str(tensor.sizes()) : "undefined"));
  throw ConfigError(
      fmt::format("strategy.context: no tensor of the batch has a dimension {} with positions; got {}; "
                  "hint: strategy.context.dimension, or replicate instead of context",
                  options_.dimension, fmt::join(shapes, ", ")));
}

bool ContextCut::is_cut(const std::string& name, const at::Tensor& tensor, int64_t length) const {
  if (!options_.tensors.empty()) return std::ranges::find(options_.tensors, name) != options_.tensors.end();
  return tensor.defined() && tensor.dim() > options_.dimension && tensor.size(options_.dimension) == length;
}

Batch ContextCut::cut(const Batch& batch) const {
  const int64_t ranks = group_->world_size();
  const int64_t length = length_of(batch);
  if (!can_divide(length))
    throw Error(
        "context",
        fmt::format("a batch has sequences of {} positions, which cannot be divided over {} ranks; "
                    "valid: a multiple of {}, at least {}, such as {}; hint: pad or cut the examples",
                    length, ranks, multiple(), 2 * ranks, lengths_that_would_do(length, multiple(), 2 * ranks)));
  Batch part = batch;
  for (auto& [name, tensor] : part.items()) {
    if (!is_cut(name, tensor, length)) continue;
    if (tensor.size(options_.dimension) != length)
      throw Error("context", fmt::format("the batch's tensors have different numbers of positions; got {} in '{}', {} "
                                         "in '{}'; hint: strategy.context.tensors",
                                         length, options_.tensors.front(), tensor.size(options_.dimension), name));
    tensor = cut_context(tensor, options_.dimension, group_,
                         options_.method == "ring" ? ContextMethod::kRing : ContextMethod::kAllToAll);
  }
  return part;
}

Batch ContextCut::part_of(const Batch& batch) const {
  const bool has_positions = std::ranges::any_of(batch.items(), [&](const Batch::Item& item) {
    return item.second.defined() && item.second.dim() > options_.dimension;
  });
  if (!has_positions && options_.tensors.empty()) return batch;
  return can_divide(length_of(batch)) ? cut(batch) : batch;
}

Batch ContextCut::whole_of(const Batch& prediction) const {
  Batch whole = prediction;
  for (auto& [name, tensor] : whole.items())
    if (tensor.defined()) tensor = full_sequence(tensor);
  return whole;
}

// ---- Steps

StepOutput ContextCut::training_forward(const Batch& batch, const std::function<StepOutput(const Batch&)>& forward) {
  const WeightForwardScope scope;
  const int64_t before = detail::context_attention_calls();
  detail::take_uneven_targets();
  StepOutput output = forward(cut(batch));
  // Also where a weight of zero has taken away what was not a number.
  if (!output.has_loss())
    throw Error(
        "context",
        "training_step gave no loss on this rank, but ranks that divide an example run backward together; hint: "
        "a loss that is a number also where none of the rank's positions counts, with the weight 0: "
        "at::where(count > 0, loss, at::zeros_like(loss))");
  if (detail::take_uneven_targets() && !output.weight().defined())
    throw Error("context",
                "the loss leaves some targets out, or weighs classes, so that ranks have means over other totals, but "
                "training_step gives no weight; hint: return {.loss = loss, .weight = targets.ne(ignored).sum()}, with "
                "class weights {.loss = loss, .weight = class_weights.index_select(0, targets.flatten()).sum()}");
  if (!std::exchange(has_attended_, true) && output.has_loss() && detail::context_attention_calls() == before)
    throw ConfigError(
        "strategy.context: no scaled_dot_product_attention and no full_sequence has run over the sequences that ranks "
        "divide, and nothing else mixes positions; hint: replicate instead of context, which divides examples");
  return output;
}

}  // namespace levin
