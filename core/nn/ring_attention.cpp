#include <levin/core/nn/ring_attention.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/nn/kept_group.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace levin::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Added to the scores of keys that a query does not see; finite, so that queries that see none of a block's keys stay
/// numbers, which count for nothing beside others.
constexpr double kNotSeen = -1e30;

/// Type in which sums of blocks are kept.
at::ScalarType type_of_sums(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// ---- Blocks

/// Whether a device has LibTorch's flash kernel for these, as GPUs have.
bool has_device_kernel(const AttentionBlock& block) {
  static const c10::OperatorHandle kernels =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_scaled_dot_product_flash_attention", "");
  const c10::DispatchKey device =
      c10::computeDispatchKey(block.query.scalar_type(), block.query.layout(), block.query.device());
  return !block.query.is_cpu() && kernels.hasKernelForDispatchKey(device) && !block.mask.defined() &&
         block.query.element_size() == 2 && block.query.size(3) % 8 == 0 && block.query.size(3) <= 256 &&
         block.query.size(3) == block.value.size(3);
}
bool has_cpu_kernel(const AttentionBlock& block) {
  return block.query.is_cpu() && block.query.size(3) == block.value.size(3);
}

/// One for each head of the queries.
at::Tensor repeated_for(const at::Tensor& heads, const at::Tensor& query) {
  return heads.size(1) == query.size(1) ? heads : heads.repeat_interleave(query.size(1) / heads.size(1), 1);
}
at::Tensor summed_to(const at::Tensor& gradient, const at::Tensor& heads) {
  return gradient.size(1) == heads.size(1) ? gradient : gradient.unflatten(1, {heads.size(1), -1}).sum(2);
}

std::optional<at::Tensor> mask_for_kernel(const AttentionBlock& block) {
  if (!block.mask.defined()) return std::nullopt;
  return block.mask.to(type_of_sums(block.query))
      .expand({block.query.size(0), block.query.size(1), block.query.size(2), block.key.size(2)});
}

double scale_of(const AttentionBlock& block) {
  return block.scale.value_or(1 / std::sqrt(static_cast<double>(block.query.size(3))));
}

/// What the products of matrices are of.
at::Tensor scores_of(const AttentionBlock& block, const at::Tensor& key) {
  const at::ScalarType type = type_of_sums(block.query);
  at::Tensor scores = at::matmul(block.query.to(type), key.to(type).transpose(2, 3)).mul_(scale_of(block));
  if (block.mask.defined()) scores.add_(block.mask);
  if (block.causal)
    scores.masked_fill_(
        at::ones({scores.size(2), scores.size(3)}, scores.options().dtype(at::kBool)).tril().logical_not(), kNotSeen);
  return scores;
}

// ---- Around the ring

/// A tensor on its way to the next rank, and that of the one before.
class Shift {
 public:
  Shift(Collective& group, at::Tensor sent, int64_t tag) : sent_(std::move(sent)), received_(at::empty_like(sent_)) {
    const int64_t ranks = group.world_size();
    const int64_t next = (group.rank() + 1) % ranks;
    const int64_t before = (group.rank() + ranks - 1) % ranks;
    // One of two neighbours sends first, so that both come to the same call where these wait for each other.
    if (group.rank() % 2 == 0) works_.push_back(group.send(sent_, next, tag));
    works_.push_back(group.receive(received_, before, tag));
    if (group.rank() % 2 != 0) works_.push_back(group.send(sent_, next, tag));
  }
  at::Tensor wait() {
    for (const auto& work : works_) work->wait();
    return received_;
  }

 private:
  at::Tensor sent_;
  at::Tensor received_;
  std::vector<std::unique_ptr<Work>> works_;
};

constexpr int64_t kTagOfKeys = 4072;
constexpr int64_t kTagOfGradients = 4073;

/// Keys and values, or their gradients, in one tensor that travels.
class JoinedPair {
 public:
  JoinedPair(const at::Tensor& key, const at::Tensor& value)
      : shapes_{key.sizes().vec(), value.sizes().vec()}, values_(key.numel()) {}
  static at::Tensor join(const at::Tensor& key, const at::Tensor& value) {
    return at::cat({key.reshape({-1}), value.reshape({-1})});
  }
  at::Tensor first(const at::Tensor& joined) const { return joined.narrow(0, 0, values_).view(shapes_[0]); }
  at::Tensor second(const at::Tensor& joined) const {
    return joined.narrow(0, values_, joined.numel() - values_).view(shapes_[1]);
  }

 private:
  std::vector<int64_t> shapes_[2];
  int64_t values_;  ///< where they begin
};

/// Which of this rank's queries see which of another's keys.
struct Meeting {
  int64_t first_query = 0;
  int64_t queries = 0;
  int64_t keys = 0;  ///< the first ones
  bool causal = false;
};

/// Under a causal mask the earlier chunk of an earlier rank is seen by all, its later one by none; of later ranks both
/// are seen by the later chunk only.
Meeting meeting_of(int64_t rank, int64_t owner, int64_t part, bool causal) {
  if (!causal || owner == rank) return {0, part, part, causal};
  return owner < rank ? Meeting{0, part, part / 2, false} : Meeting{part / 2, part / 2, part, false};
}

struct RingArguments {
  at::Tensor mask;  ///< [.., own queries or 1, keys of all ranks in their order or 1], or undefined
  bool causal = false;
  std::optional<double> scale = {};
};

AttentionBlock block_of(const Meeting& met, int64_t owner, const RingArguments& arguments, const at::Tensor& query,
                        const at::Tensor& key, const at::Tensor& value) {
  AttentionBlock block{.query = query.narrow(2, met.first_query, met.queries),
                       .key = key.narrow(2, 0, met.keys),
                       .value = value.narrow(2, 0, met.keys),
                       .causal = met.causal,
                       .scale = arguments.scale};
  if (!arguments.mask.defined()) return block;
  block.mask = arguments.mask;
  if (block.mask.size(-2) > 1) block.mask = block.mask.narrow(-2, met.first_query, met.queries);
  if (block.mask.size(-1) > 1) block.mask = block.mask.narrow(-1, owner * key.size(2), met.keys);
  return block;
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const RingArguments& arguments,
                            const std::shared_ptr<Collective>& group) {
    const c10::impl::ExcludeDispatchKeyGuard as_they_are(c10::autocast_dispatch_keyset);
    const int64_t ranks = group->world_size();
    const int64_t part = query.size(2);
    const JoinedPair pair(key, value);
    at::Tensor sum = at::zeros({query.size(0), query.size(1), part, value.size(3)},
                               query.options().dtype(type_of_sums(query)).requires_grad(false));
    at::Tensor log_sum_exp =
        at::full({query.size(0), query.size(1), part}, -std::numeric_limits<double>::infinity(), sum.options());
    at::Tensor travelling = JoinedPair::join(key, value);
    for (int64_t step = 0; step < ranks; ++step) {
      const int64_t owner = (group->rank() + ranks - step) % ranks;
      std::optional<Shift> shift;
      if (step + 1 < ranks) shift.emplace(*group, travelling, kTagOfKeys);
      const Meeting met = meeting_of(group->rank(), owner, part, arguments.causal);
      const AttendedBlock seen =
          attend_block(block_of(met, owner, arguments, query, pair.first(travelling), pair.second(travelling)));
      const at::Tensor sum_here = sum.narrow(2, met.first_query, met.queries);
      const at::Tensor log_here = log_sum_exp.narrow(2, met.first_query, met.queries);
      const at::Tensor both = at::logaddexp(log_here, seen.log_sum_exp);
      sum_here.mul_((log_here - both).exp_().unsqueeze(3))
          .addcmul_(seen.output.to(sum.scalar_type()), (seen.log_sum_exp - both).exp_().unsqueeze(3));
      log_here.copy_(both);
      if (shift) travelling = shift->wait();
    }
    if (arguments.mask.defined()) {
      // A query that sees no key gets zeros, and gives no gradient.
      const at::Tensor blind = log_sum_exp < kNotSeen / 2;
      sum.masked_fill_(blind.unsqueeze(3), 0);
      log_sum_exp.masked_fill_(blind, std::numeric_limits<double>::infinity());
    }
    const at::Tensor output = sum.to(query.scalar_type());
    keep_group(*context, group);
    context->saved_data["causal"] = arguments.causal;
    context->saved_data["scale"] = arguments.scale;
    context->save_for_backward({query, key, value, output, log_sum_exp, arguments.mask});
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives_of_context();
    const std::shared_ptr<Collective> group = kept_group(*context);
    const c10::impl::ExcludeDispatchKeyGuard as_they_are(c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& query = saved[0];
    const at::Tensor& key = saved[1];
    const RingArguments arguments{.mask = saved[5],
                                  .causal = context->saved_data["causal"].toBool(),
                                  .scale = context->saved_data["scale"].toOptional<double>()};
    const int64_t ranks = group->world_size();
    const JoinedPair pair(key, saved[2]);
    const at::ScalarType type = type_of_sums(query);
    const at::Tensor of_query = at::zeros(query.sizes(), query.options().dtype(type));
    at::Tensor travelling = JoinedPair::join(key, saved[2]);
    at::Tensor sums;  // gradients of the keys and values that are here, by the ranks before this one
    for (int64_t step = 0; step < ranks; ++step) {
      const int64_t owner = (group->rank() + ranks - step) % ranks;
      std::optional<Shift> shift;
      if (step + 1 < ranks) shift.emplace(*group, travelling, kTagOfKeys);
      std::optional<Shift> shift_of_sums;
      if (step > 0) shift_of_sums.emplace(*group, std::exchange(sums, at::Tensor()), kTagOfGradients);
      const Meeting met = meeting_of(group->rank(), owner, query.size(2), arguments.causal);
      const auto here = [&](const at::Tensor& tensor) { return tensor.narrow(2, met.first_query, met.queries); };
      const AttentionBlockGradients own =
          attend_block_backward(block_of(met, owner, arguments, query, pair.first(travelling), pair.second(travelling)),
                                {.output = here(saved[3]), .log_sum_exp = here(saved[4])}, here(gradients[0]));
      here(of_query).add_(own.query);
      sums = shift_of_sums ? shift_of_sums->wait() : at::zeros(travelling.sizes(), travelling.options().dtype(type));
      pair.first(sums).narrow(2, 0, met.keys).add_(own.key);
      pair.second(sums).narrow(2, 0, met.keys).add_(own.value);
      if (shift) travelling = shift->wait();
    }
    sums = Shift(*group, sums, kTagOfGradients).wait();
    return {of_query.to(query.scalar_type()), pair.first(sums).to(key.scalar_type()),
            pair.second(sums).to(key.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

at::Tensor mask_of_ring(const at::Tensor& given, const at::Tensor& query, const Collective& group) {
  const at::NoGradGuard no_grad;
  const int64_t ranks = group.world_size();
  at::Tensor mask = given;
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  if (mask.size(2) > 1) mask = ring_part(mask, 2, group.rank(), ranks);
  if (mask.size(3) > 1) mask = in_ring_order(mask, 3, ranks, /*to_ranks=*/true);
  const at::TensorOptions options = query.options().dtype(type_of_sums(query)).requires_grad(false);
  if (mask.scalar_type() == at::kBool) return at::zeros(mask.sizes(), options).masked_fill_(~mask, kNotSeen);
  return mask.to(options.dtype()).clamp_min(kNotSeen);
}

/// As autocast gives them to attention.
at::Tensor cast_for_attention(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device) || !tensor.is_floating_point() || tensor.scalar_type() == at::kDouble)
    return tensor;
  return tensor.to(at::autocast::get_autocast_dtype(device));
}

}  // namespace

at::Tensor ring_part(const at::Tensor& all, int64_t dim, int64_t rank, int64_t ranks) {
  const std::vector<at::Tensor> chunks = all.chunk(2 * ranks, dim);
  return at::cat({chunks[static_cast<size_t>(rank)], chunks[static_cast<size_t>(2 * ranks - 1 - rank)]}, dim);
}

at::Tensor in_ring_order(const at::Tensor& all, int64_t dim, int64_t ranks, bool to_ranks) {
  const std::vector<at::Tensor> chunks = all.chunk(2 * ranks, dim);
  std::vector<at::Tensor> ordered(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const size_t in_sequence = i % 2 == 0 ? i / 2 : chunks.size() - 1 - i / 2;
    ordered[to_ranks ? i : in_sequence] = chunks[to_ranks ? in_sequence : i];
  }
  return at::cat(ordered, dim);
}

AttendedBlock attend_block(const AttentionBlock& block) {
  const at::Tensor key = repeated_for(block.key, block.query);
  const at::Tensor value = repeated_for(block.value, block.query);
  if (has_device_kernel(block)) {
    const auto result = at::_scaled_dot_product_flash_attention(block.query, key, value, 0, block.causal,
                                                                /*return_debug_mask=*/false, block.scale);
    return {.output = std::get<0>(result), .log_sum_exp = std::get<1>(result)};
  }
  if (has_cpu_kernel(block)) {
    const auto [output, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
        block.query, key, value, 0, block.causal, mask_for_kernel(block), block.scale);
    return {.output = output, .log_sum_exp = log_sum_exp};
  }
  const at::Tensor scores = scores_of(block, key);
  const at::Tensor log_sum_exp = scores.logsumexp(3);
  return {.output = at::matmul((scores - log_sum_exp.unsqueeze(3)).exp_(), value.to(scores.scalar_type())),
          .log_sum_exp = log_sum_exp};
}

AttentionBlockGradients attend_block_backward(const AttentionBlock& block, const AttendedBlock& attended,
                                              const at::Tensor& gradient) {
  const at::Tensor key = repeated_for(block.key, block.query);
  const at::Tensor value = repeated_for(block.value, block.query);
  const auto summed = [&](const at::Tensor& of_query, const at::Tensor& of_key, const at::Tensor& of_value) {
    return AttentionBlockGradients{
        .query = of_query, .key = summed_to(of_key, block.key), .value = summed_to(of_value, block.value)};
  };
  if (has_device_kernel(block)) {
    // Without dropout its numbers count for nothing.
    const at::Tensor no_numbers = at::zeros({}, block.query.options().dtype(at::kLong));
    const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_backward(
        gradient.contiguous(), block.query, key, value, attended.output.contiguous(), attended.log_sum_exp.contiguous(),
        at::Tensor(), at::Tensor(), block.query.size(2), key.size(2), 0, block.causal, no_numbers, no_numbers,
        block.scale);
    return summed(of_query, of_key, of_value);
  }
  if (has_cpu_kernel(block)) {
    const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, block.query, key, value, attended.output, attended.log_sum_exp, 0, block.causal,
        mask_for_kernel(block), block.scale);
    return summed(of_query, of_key, of_value);
  }
  const at::Tensor shares = scores_of(block, key).sub_(attended.log_sum_exp.unsqueeze(3)).exp_();
  const at::ScalarType type = shares.scalar_type();
  const at::Tensor given = gradient.to(type);
  const at::Tensor of_scores =
      (at::matmul(given, value.to(type).transpose(2, 3)) - (given * attended.output.to(type)).sum(3, true))
          .mul_(shares)
          .mul_(scale_of(block));
  return summed(at::matmul(of_scores, key.to(type)), at::matmul(of_scores.transpose(2, 3), block.query.to(type)),
                at::matmul(shares.transpose(2, 3), given));
}

at::Tensor attend_in_ring(const ContextAttention& attention, const std::shared_ptr<Collective>& group) {
  constexpr const char* kHint = "hint: strategy.context.method: all_to_all";
  if (attention.dropout > 0)
    throw Error("context", std::string("attention in a ring has no dropout_p, whose mask no rank has; ") + kHint +
                               ", or dropout behind attention");
  if (attention.mask && attention.mask->requires_grad())
    throw Error("context", std::string("attention in a ring gives its mask no gradient; ") + kHint);
  if (attention.mask && attention.causal)
    throw Error("context", "attention is given a mask and is_causal; valid: one of them");
  const int64_t heads = attention.query.size(1);
  for (const at::Tensor& other : {attention.key, attention.value})
    if (other.size(0) != attention.query.size(0) || (attention.grouped ? heads % other.size(1) : heads - other.size(1)))
      throw Error("context",
                  fmt::format("attention in a ring is given queries {} and keys or values {}; valid: as many examples, "
                              "and as many heads, or with enable_gqa a divisor of theirs",
                              c10::str(attention.query.sizes()), c10::str(other.sizes())));
  RingArguments arguments{.causal = attention.causal, .scale = attention.scale};
  if (attention.mask) arguments.mask = mask_of_ring(*attention.mask, attention.query, *group);
  const at::Tensor query =  // whose features the kernels read one after another
      attention.query.stride(3) == 1 ? attention.query : attention.query.contiguous();
  return RingAttention::apply(cast_for_attention(query), cast_for_attention(attention.key),
                              cast_for_attention(attention.value), arguments, group);
}

}  // namespace levin::detail
