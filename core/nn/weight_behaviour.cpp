#include <levin/core/nn/weight_behaviour.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/permanent_library.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/move_to_device.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace levin {
namespace {

using detail::kBehaviourKey;

/// A weight with behaviours. It does not change once it is in the table.
struct MarkedWeight {
  std::string name;
  at::DimVector sizes;
  at::DimVector strides;
  std::vector<std::shared_ptr<WeightBehaviour>> chain;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< keeps the address from being another's

  std::string why_not_elsewhere() const {
    for (const auto& behaviour : chain)
      if (std::string why = behaviour->why_not_elsewhere(); !why.empty()) return why;
    return {};
  }
};

/// By memory, which views share with their weight, in inference mode too.
class MarkedWeights {
 public:
  static MarkedWeights& instance() {
    static auto* const weights = new MarkedWeights;
    return *weights;
  }

  std::shared_ptr<const MarkedWeight> find(const at::Tensor& tensor) const {
    if (!has_place(tensor)) return nullptr;
    const MutexLock lock(mutex_);
    const auto found = weights_.find(place_of(tensor));
    return found == weights_.end() ? nullptr : found->second;
  }
  /// The weight whose memory a view has, wherever it begins.
  std::shared_ptr<const MarkedWeight> find_owner(const at::Tensor& tensor) const {
    if (!has_place(tensor)) return nullptr;
    const MutexLock lock(mutex_);
    auto found = weights_.upper_bound(place_of(tensor));
    if (found == weights_.begin()) return nullptr;
    --found;
    return found->first.first == place_of(tensor).first ? found->second : nullptr;
  }
  void set(const at::Tensor& weight, std::shared_ptr<const MarkedWeight> marked) {
    const MutexLock lock(mutex_);
    std::erase_if(weights_, [](const auto& item) { return item.second->storage.expired(); });
    weights_.insert_or_assign(place_of(weight), std::move(marked));
  }
  void erase(const at::Tensor& weight) {
    const MutexLock lock(mutex_);
    weights_.erase(place_of(weight));
  }

 private:
  using Place = std::pair<const c10::StorageImpl*, int64_t>;
  static bool has_place(const at::Tensor& tensor) { return tensor.defined() && tensor.has_storage(); }
  static Place place_of(const at::Tensor& tensor) {
    return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset()};
  }

  mutable Mutex mutex_;
  std::map<Place, std::shared_ptr<const MarkedWeight>> weights_ LEVIN_GUARDED_BY(mutex_);
};

// ---- Operators without a seat

void refuse_where_forbidden(const at::Tensor& tensor, const std::string& what) {
  if (!detail::has_behaviour_key(tensor) || !detail::is_forward()) return;
  const auto weight = MarkedWeights::instance().find_owner(tensor);
  if (weight == nullptr) return;
  if (const std::string why = weight->why_not_elsewhere(); !why.empty())
    throw_weight_not_usable(weight->name, why, what);
}

/// Views take the key along, and so do not escape.
bool check_operator(const c10::OperatorHandle& operation, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (!detail::is_forward() || detail::gives_view(operation)) return false;
  const auto& schema = operation.schema();
  detail::for_each_tensor_argument(schema.arguments().size(), *stack,
                                   [&](const at::Tensor& tensor) { refuse_where_forbidden(tensor, schema.name()); });
  return false;
}

// ---- Seats

bool is_weight(const at::Tensor& tensor, const MarkedWeight& weight) {
  return tensor.sizes() == weight.sizes && tensor.strides() == weight.strides;
}
bool is_transpose(const at::Tensor& tensor, const MarkedWeight& weight) {
  return tensor.dim() == 2 && weight.sizes.size() == 2 && tensor.size(0) == weight.sizes[1] &&
         tensor.size(1) == weight.sizes[0] && tensor.stride(0) == weight.strides[1] &&
         tensor.stride(1) == weight.strides[0];
}

at::Tensor run_linear(const MarkedWeight& weight, size_t from, const LinearCall& call) {
  if (from == weight.chain.size())
    return at::linear(call.input, call.weight, call.bias.defined() ? std::optional(call.bias) : std::nullopt);
  return weight.chain[from]->linear(call, [&](const LinearCall& inner) { return run_linear(weight, from + 1, inner); });
}

/// Under chains of which a part does not know of sequences that are cut, all positions pass.
at::Tensor run_linear(const MarkedWeight& weight, const LinearCall& call) {
  if (is_context_part(call.input))
    return detail::run_on_context_part(call.input, weight.name, [&](const at::Tensor& part) {
      LinearCall of_part = call;
      of_part.input = part;
      return run_linear(weight, of_part);
    });
  const c10::impl::ExcludeDispatchKeyGuard plain(kBehaviourKey);
  const bool knows_parts =
      std::ranges::all_of(weight.chain, [](const auto& behaviour) { return behaviour->takes_cut_sequences(); });
  if (knows_parts) return run_linear(weight, 0, call);
  LinearCall of_all = call;
  of_all.input = full_sequence(call.input);
  std::optional<SequenceScope> all_positions;
  if (detail::has_present_sequence()) all_positions.emplace(of_all.input, weight.name);
  return run_linear(weight, 0, of_all);
}

at::Tensor run_embedding(const MarkedWeight& weight, size_t from, const EmbeddingCall& call) {
  if (from == weight.chain.size())
    return at::embedding(call.weight, call.indices, call.padding_idx, call.scale_grad_by_freq, call.sparse);
  return weight.chain[from]->embedding(
      call, [&](const EmbeddingCall& inner) { return run_embedding(weight, from + 1, inner); });
}

at::Tensor plain_transpose(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard plain(kBehaviourKey);
  return tensor.t();
}

at::Tensor linear_seat(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias) {
  if (detail::has_behaviour_key(weight))
    if (const auto marked = MarkedWeights::instance().find(weight); marked != nullptr && is_weight(weight, *marked))
      return run_linear(*marked, {input, weight, bias.value_or(at::Tensor()), marked->name});
  for (const at::Tensor& argument : {input, weight, bias.value_or(at::Tensor())})
    refuse_where_forbidden(argument, "aten::linear of another form");
  return detail::run_as_others("aten::linear", "", keys, {input, weight, bias}).back().toTensor();
}

/// torch::nn::Linear gives its weight's transpose, and adds a bias afterwards, in place.
at::Tensor matmul_seat(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& other) {
  if (detail::has_behaviour_key(other))
    if (const auto marked = MarkedWeights::instance().find(other); marked != nullptr && is_transpose(other, *marked))
      return run_linear(*marked, {input, plain_transpose(other), at::Tensor(), marked->name});
  for (const at::Tensor& argument : {input, other})
    refuse_where_forbidden(argument, "aten::matmul with other than its transpose");
  return detail::run_as_others("aten::matmul", "", keys, {input, other}).back().toTensor();
}

at::Tensor addmm_seat(c10::DispatchKeySet keys, const at::Tensor& bias, const at::Tensor& input,
                      const at::Tensor& other, const at::Scalar& beta, const at::Scalar& alpha) {
  if (detail::has_behaviour_key(other) && bias.dim() == 1 && beta.equal(1) && alpha.equal(1))
    if (const auto marked = MarkedWeights::instance().find(other); marked != nullptr && is_transpose(other, *marked))
      return run_linear(*marked, {input, plain_transpose(other), bias, marked->name});
  for (const at::Tensor& argument : {bias, input, other})
    refuse_where_forbidden(argument, "aten::addmm with other than its transpose");
  return detail::run_as_others("aten::addmm", "", keys, {bias, input, other, beta, alpha}).back().toTensor();
}

at::Tensor embedding_seat(c10::DispatchKeySet keys, const at::Tensor& weight, const at::Tensor& indices,
                          c10::SymInt padding_idx, bool scale_grad_by_freq, bool sparse) {
  if (detail::has_behaviour_key(weight))
    if (const auto marked = MarkedWeights::instance().find(weight); marked != nullptr && is_weight(weight, *marked)) {
      const c10::impl::ExcludeDispatchKeyGuard plain(kBehaviourKey);
      const auto run = [&](const at::Tensor& rows) {
        return run_embedding(*marked, 0,
                             {weight, rows, padding_idx.expect_int(), scale_grad_by_freq, sparse, marked->name});
      };
      return is_context_part(indices) ? detail::run_on_context_part(indices, marked->name, run) : run(indices);
    }
  refuse_where_forbidden(weight, "aten::embedding of a part of it");
  return detail::run_as_others("aten::embedding", "", keys,
                               {weight, indices, std::move(padding_idx), scale_grad_by_freq, sparse})
      .back()
      .toTensor();
}

void install_seats() {
  static std::once_flag once;
  std::call_once(once, [] {
    detail::add_operator_handler(check_operator);
    torch::Library& aten = permanent_library(torch::Library::IMPL, "aten", kBehaviourKey);
    aten.impl("linear", TORCH_FN(linear_seat));
    aten.impl("matmul", TORCH_FN(matmul_seat));
    aten.impl("addmm", TORCH_FN(addmm_seat));
    aten.impl("embedding", TORCH_FN(embedding_seat));
  });
}

}  // namespace

void add_weight_behaviour(const at::Tensor& weight, const std::string& name,
                          std::shared_ptr<WeightBehaviour> behaviour) {
  LEVIN_CHECK(weight.defined() && weight.has_storage() && behaviour != nullptr,
              "a behaviour is of a weight with memory");
  install_seats();
  const at::NoGradGuard no_grad;
  const auto before = MarkedWeights::instance().find(weight);
  auto marked = std::make_shared<MarkedWeight>(MarkedWeight{.name = name,
                                                            .sizes = at::DimVector(weight.sizes()),
                                                            .strides = at::DimVector(weight.strides()),
                                                            .chain = {},
                                                            .storage = weight.storage().getWeakStorageImpl()});
  if (detail::has_behaviour_key(weight) && before != nullptr) marked->chain = before->chain;
  marked->chain.push_back(std::move(behaviour));
  MarkedWeights::instance().set(weight, std::move(marked));
  if (!detail::has_behaviour_key(weight)) replace_data(weight, detail::with_behaviour_key(weight, /*key=*/true));
}

at::Tensor with_behaviours_of(const at::Tensor& weight, const at::Tensor& memory) {
  const auto of_weight = detail::has_behaviour_key(weight) ? MarkedWeights::instance().find(weight) : nullptr;
  if (of_weight == nullptr) return memory;
  LEVIN_CHECK(weight.sizes() == memory.sizes(), "memory with a weight's behaviours has its shape");
  const at::NoGradGuard no_grad;
  MarkedWeights::instance().set(
      memory, std::make_shared<MarkedWeight>(MarkedWeight{.name = of_weight->name,
                                                          .sizes = at::DimVector(memory.sizes()),
                                                          .strides = at::DimVector(memory.strides()),
                                                          .chain = of_weight->chain,
                                                          .storage = memory.storage().getWeakStorageImpl()}));
  return detail::with_behaviour_key(memory, /*key=*/true);
}

WeightForwardScope::WeightForwardScope() { detail::enter_forward(); }
WeightForwardScope::~WeightForwardScope() { detail::leave_forward(); }

bool has_weight_behaviours(const at::Tensor& weight) {
  return detail::has_behaviour_key(weight) && MarkedWeights::instance().find(weight) != nullptr;
}

void remove_weight_behaviours(const at::Tensor& weight) {
  if (!detail::has_behaviour_key(weight)) return;
  const at::NoGradGuard no_grad;
  MarkedWeights::instance().erase(weight);
  replace_data(weight, detail::with_behaviour_key(weight, /*key=*/false));
}

void throw_weight_not_usable(const std::string& name, const std::string& why, const std::string& what) {
  throw Error("nn",
              fmt::format("the weight '{}' {}, and {} would compute with what this rank holds of it alone; valid: "
                          "torch::nn::Linear, at::linear, at::matmul and at::addmm with its transpose; hint: use "
                          "it so, or leave it out of the plan",
                          name, why, what));
}

}  // namespace levin
