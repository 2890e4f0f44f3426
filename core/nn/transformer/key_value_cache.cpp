#include <levin/core/nn/transformer/key_value_cache.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/behaviour_key.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace levin::nn {
namespace {

thread_local KeyValueCache::Step* current_step = nullptr;

at::Tensor integers(int64_t begin, int64_t end, const at::Device& device) {
  return at::arange(begin, end, at::TensorOptions(at::kLong).device(device));
}

/// Lets each of the T queries attend to its own key, the last T, so that padding does not give NaN.
at::Tensor with_own_keys(const at::Tensor& mask) {
  const int64_t queries = mask.size(-2);
  const int64_t keys = mask.size(-1);
  at::Tensor own = at::zeros({queries, keys}, mask.options());
  own.narrow(1, keys - queries, queries).copy_(at::eye(queries, mask.options()));
  return mask.logical_or(own);
}

/// Indices [N, places] for dimension 2 of [N, heads, places, D].
at::Tensor for_heads(const at::Tensor& places, const at::Tensor& like) {
  return places.unsqueeze(1).unsqueeze(-1).expand({-1, like.size(1), -1, like.size(3)});
}

}  // namespace

KeyValueCache::Step::Step(KeyValueCache& cache, const at::Tensor& positions) : cache_(cache), outer_(current_step) {
  cache.begin(positions);
  current_step = this;
}

KeyValueCache::Step::~Step() {
  current_step = outer_;
  cache_.commit();
}

KeyValueCache::Step* KeyValueCache::Step::current() { return current_step; }

KeyValueCache::Attended KeyValueCache::Step::extend(const void* layer, int64_t sliding_window, const at::Tensor& keys,
                                                    const at::Tensor& values) {
  if (at::GradMode::is_enabled() && (keys.requires_grad() || values.requires_grad()))
    throw Error("nn", "a key/value cache does not keep gradients; hint: torch::NoGradGuard around the forward");
  Layer& own = cache_.layers_[layer];
  if (own.keys.defined() && own.keys.size(0) != keys.size(0))
    throw Error("nn", fmt::format("a key/value cache has rows of one batch; got {} rows, valid: {}; hint: clear() "
                                  "before another batch",
                                  keys.size(0), own.keys.size(0)));
  if (keys.size(2) != cache_.new_positions_.size(-1))
    throw Error("nn", fmt::format("the tokens of a forward are not those of its KeyValueCache::Step; got {}, valid: {}",
                                  keys.size(2), cache_.new_positions_.size(-1)));
  const Plan& plan = cache_.plan_of(sliding_window, keys.size(0), keys.device());
  return sliding_window > 0 ? cache_.extend_window(own, sliding_window, plan, keys, values)
                            : cache_.extend_all(own, plan, keys, values);
}

bool takes_token_kernels(const at::Tensor& x) {
  return current_step != nullptr && !at::GradMode::is_enabled() && x.device().is_cpu() &&
         x.scalar_type() == at::kFloat && x.dim() == 3 && x.size(1) == 1 && x.is_contiguous() &&
         !levin::detail::has_behaviour_key(x);
}

int64_t KeyValueCache::nbytes() const {
  int64_t bytes = 0;
  for (const auto& [_, layer] : layers_)
    bytes += static_cast<int64_t>(layer.keys.nbytes()) + static_cast<int64_t>(layer.values.nbytes());
  return bytes;
}

void KeyValueCache::select_rows(const at::Tensor& rows) {
  LEVIN_CHECK(!new_positions_.defined(), "rows of a key/value cache are selected between steps");
  for (auto& [_, layer] : layers_) {
    layer.keys = layer.keys.index_select(0, rows);
    layer.values = layer.values.index_select(0, rows);
  }
  for (auto& [_, positions] : positions_) positions = positions.index_select(0, rows);
}

void KeyValueCache::clear() {
  layers_.clear();
  positions_.clear();
  length_ = 0;
  is_plain_ = true;
}

void KeyValueCache::begin(const at::Tensor& positions) {
  if (new_positions_.defined()) throw Error("nn", "a key/value cache has one KeyValueCache::Step at a time");
  if (positions.dim() != 1 && positions.dim() != 2)
    throw Error("nn",
                fmt::format("positions of a KeyValueCache::Step have one or two dimensions; got {}", positions.dim()));
  new_positions_ = positions;
  is_plain_ = is_plain_ && positions.dim() == 1;
}

void KeyValueCache::commit() {
  for (auto& [window, plan] : plans_)
    if (plan.after.defined()) positions_[window] = plan.after;
  plans_.clear();
  length_ += new_positions_.size(-1);
  new_positions_.reset();
}

KeyValueCache::Plan& KeyValueCache::plan_of(int64_t window, int64_t rows, const at::Device& device) {
  const auto found = plans_.find(window);
  if (found != plans_.end()) return found->second;
  return plans_[window] = window > 0 ? plan_window(window, rows, device) : plan_all(rows, device);
}

at::Tensor KeyValueCache::positions_of_places(int64_t window, int64_t rows, const at::Device& device) const {
  const auto found = positions_.find(window);
  if (found != positions_.end()) return found->second;
  at::Tensor places = integers(0, window > 0 ? std::min(length_, window) : length_, device);
  // Plain tokens go around in a window.
  if (window > 0 && length_ > window) places = places + at::floor_divide(length_ - 1 - places, window) * window;
  return is_plain_ ? places : places.expand({rows, -1});
}

KeyValueCache::Plan KeyValueCache::plan_all(int64_t rows, const at::Device& device) const {
  const int64_t count = new_positions_.size(-1);
  if (is_plain_) {
    if (count == 1) return {};
    if (length_ == 0) return {.is_causal = true};
    return {.mask = reach_mask(integers(length_, length_ + count, device), integers(0, length_ + count, device), {})};
  }
  const at::Tensor added = new_positions_.expand({rows, count});
  Plan plan{.after = at::cat({positions_of_places(0, rows, device), added}, 1)};
  plan.mask = with_own_keys(reach_mask(added, plan.after, {}));
  return plan;
}

KeyValueCache::Plan KeyValueCache::plan_window(int64_t window, int64_t rows, const at::Device& device) const {
  const int64_t count = new_positions_.size(-1);
  const AttentionReach reach{.sliding_window = window};
  if (is_plain_) {
    if (count == 1) return {};
    if (length_ == 0 && count <= window) return {.is_causal = true};
    const at::Tensor added = integers(length_, length_ + count, device);
    return {.mask = reach_mask(added, at::cat({positions_of_places(window, rows, device), added}), reach)};
  }
  const at::Tensor added = new_positions_.expand({rows, count});
  const at::Tensor before = positions_of_places(window, rows, device);
  Plan plan;
  if (count == 1 && before.size(1) == window) {
    plan.replaces = true;
    plan.places = before.argmin(1, /*keepdim=*/true);  // padding first, then the oldest token
    plan.after = before.scatter(1, plan.places, added);
    const at::Tensor own = at::zeros(before.sizes(), before.options().dtype(at::kBool)).scatter(1, plan.places, 1);
    plan.mask = reach_mask(added, plan.after, reach).logical_or(own.unsqueeze(1).unsqueeze(1));
    return plan;
  }
  const at::Tensor all = at::cat({before, added}, 1);
  plan.mask = with_own_keys(reach_mask(added, all, reach));
  plan.after = all;
  if (all.size(1) > window) {
    plan.places = std::get<1>(all.topk(window, 1));
    plan.after = all.gather(1, plan.places);
  }
  return plan;
}

void KeyValueCache::reserve(Layer& layer, int64_t places, int64_t most, const at::Tensor& like) const {
  if (layer.keys.defined() && layer.keys.size(2) >= places) return;
  const int64_t step = std::max<int64_t>(options_.step, 1);
  int64_t capacity = (places + step - 1) / step * step;
  if (!layer.keys.defined()) capacity = std::max(capacity, options_.capacity);
  if (most > 0) capacity = std::min(capacity, most);
  const auto grown = [&](const at::Tensor& old) {
    at::Tensor larger = at::empty({like.size(0), like.size(1), capacity, like.size(3)}, like.options());
    if (layer.used > 0) larger.narrow(2, 0, layer.used).copy_(old.narrow(2, 0, layer.used));
    return larger;
  };
  layer.keys = grown(layer.keys);
  layer.values = grown(layer.values);
}

KeyValueCache::Attended KeyValueCache::extend_all(Layer& layer, const Plan& plan, const at::Tensor& keys,
                                                  const at::Tensor& values) {
  const int64_t count = keys.size(2);
  reserve(layer, layer.used + count, /*most=*/0, keys);
  layer.keys.narrow(2, layer.used, count).copy_(keys);
  layer.values.narrow(2, layer.used, count).copy_(values);
  layer.used += count;
  return {layer.keys.narrow(2, 0, layer.used), layer.values.narrow(2, 0, layer.used), plan.mask, plan.is_causal};
}

KeyValueCache::Attended KeyValueCache::extend_window(Layer& layer, int64_t window, const Plan& plan,
                                                     const at::Tensor& keys, const at::Tensor& values) {
  const int64_t count = keys.size(2);
  if (plan.replaces) {
    const at::Tensor places = for_heads(plan.places, keys);
    layer.keys.scatter_(2, places, keys);
    layer.values.scatter_(2, places, values);
    return {layer.keys, layer.values, plan.mask, false};
  }
  if (is_plain_ && count == 1) {
    const int64_t place = length_ % window;
    const int64_t used = std::min(length_ + 1, window);
    reserve(layer, used, window, keys);
    layer.keys.narrow(2, place, 1).copy_(keys);
    layer.values.narrow(2, place, 1).copy_(values);
    layer.used = used;
    return {layer.keys.narrow(2, 0, used), layer.values.narrow(2, 0, used), {}, false};
  }
  const auto with_old = [&](const at::Tensor& old, const at::Tensor& added) {
    return layer.used > 0 ? at::cat({old.narrow(2, 0, layer.used), added}, 2) : added;
  };
  Attended all{with_old(layer.keys, keys), with_old(layer.values, values), plan.mask, plan.is_causal};
  if (is_plain_) {
    const int64_t kept = std::min(count, window);
    const int64_t used = std::min(length_ + count, window);
    const at::Tensor places = integers(length_ + count - kept, length_ + count, keys.device()).remainder(window);
    reserve(layer, used, window, keys);
    layer.keys.index_copy_(2, places, keys.narrow(2, count - kept, kept));
    layer.values.index_copy_(2, places, values.narrow(2, count - kept, kept));
    layer.used = used;
  } else if (plan.places.defined()) {
    const at::Tensor places = for_heads(plan.places, keys);
    layer.keys = all.keys.gather(2, places);
    layer.values = all.values.gather(2, places);
    layer.used = window;
  } else {
    layer.keys = all.keys.contiguous();
    layer.values = all.values.contiguous();
    layer.used = all.keys.size(2);
  }
  return all;
}

}  // namespace levin::nn
