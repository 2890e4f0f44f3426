#pragma once

#include <levin/core/base/vector_set.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// Updates of optimizers that are formulas for an element, written once: compiled for numbers, as vectorized loops over
/// float32 and float64 on the CPU, and for tensors, as LibTorch's operators for everything else. Sources that include
/// this are named in CMakeLists.txt, among Levin's own kernels.
namespace levin::optim::detail {

/// The type of a formula's constants: `V` itself for numbers, double for tensors.
template <class V>
using Constant = std::conditional_t<std::is_floating_point_v<V>, V, double>;

template <class T>
concept Number = std::is_floating_point_v<T>;

// What a formula may call, for numbers and for tensors.

template <Number T>
LEVIN_INLINE T square_root(T value) {
  return std::sqrt(value);
}
inline at::Tensor square_root(const at::Tensor& value) { return value.sqrt(); }

template <Number T>
LEVIN_INLINE T absolute(T value) {
  return value < 0 ? -value : value;
}
inline at::Tensor absolute(const at::Tensor& value) { return value.abs(); }

template <Number T>
LEVIN_INLINE T larger_of(T a, T b) {
  return a < b ? b : a;
}
inline at::Tensor larger_of(const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); }

template <Number T>
LEVIN_INLINE T clamped(T value, T low, T high) {
  return value < low ? low : (value > high ? high : value);
}
inline at::Tensor clamped(const at::Tensor& value, double low, double high) { return value.clamp(low, high); }

/// `positive`, `negative` or `zero` by the sign of a value.
template <Number T>
LEVIN_INLINE T by_sign(T value, T positive, T negative, T zero) {
  return value > 0 ? positive : (value < 0 ? negative : zero);
}
inline at::Tensor by_sign(const at::Tensor& value, double positive, double negative, double zero) {
  return at::where(value.gt(0), positive, at::where(value.lt(0), negative, zero)).to(value.scalar_type());
}

/// `value`, or 0 where `condition` is negative.
template <Number T>
LEVIN_INLINE T zero_where_negative(T condition, T value) {
  return condition < 0 ? T(0) : value;
}
inline at::Tensor zero_where_negative(const at::Tensor& condition, const at::Tensor& value) {
  return value.masked_fill(condition.lt(0), 0);
}

/// Moves `mean` a share of the way to `value`.
template <class V>
LEVIN_INLINE V moved(const V& mean, const V& value, Constant<V> share) {
  return mean + (value - mean) * share;
}

/// Elements that are worth a thread.
constexpr int64_t kElementGrain = 1 << 15;

template <size_t kStates, Number T, class Formula>
LEVIN_INLINE void element_loop(T* __restrict param, const T* __restrict grad, T* __restrict first, T* __restrict second,
                               T* __restrict third, int64_t count, const Formula& given) {
  const Formula formula = given;  // which no store below can change
  for (int64_t i = 0; i < count; ++i) {
    T p = param[i];
    T a = kStates > 0 ? first[i] : T(0);
    T b = kStates > 1 ? second[i] : T(0);
    T c = kStates > 2 ? third[i] : T(0);
    formula(p, grad[i], a, b, c);
    param[i] = p;
    if constexpr (kStates > 0) first[i] = a;
    if constexpr (kStates > 1) second[i] = b;
    if constexpr (kStates > 2) third[i] = c;
  }
}

template <size_t kStates, Number T, class Formula>
void element_loop_portable(T* param, const T* grad, T* first, T* second, T* third, int64_t count,
                           const Formula& formula) {
  element_loop<kStates>(param, grad, first, second, third, count, formula);
}
#if defined(LEVIN_HAS_X86_VECTORS)
template <size_t kStates, Number T, class Formula>
LEVIN_TARGET_AVX2 void element_loop_avx2(T* param, const T* grad, T* first, T* second, T* third, int64_t count,
                                         const Formula& formula) {
  element_loop<kStates>(param, grad, first, second, third, count, formula);
}
template <size_t kStates, Number T, class Formula>
LEVIN_TARGET_AVX512 void element_loop_avx512(T* param, const T* grad, T* first, T* second, T* third, int64_t count,
                                             const Formula& formula) {
  element_loop<kStates>(param, grad, first, second, third, count, formula);
}
#endif

/// The loop for this processor.
template <size_t kStates, Number T, class Formula>
auto* find_element_loop() {
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vector_set() == VectorSet::kAvx512) return &element_loop_avx512<kStates, T, Formula>;
  if (vector_set() == VectorSet::kAvx2) return &element_loop_avx2<kStates, T, Formula>;
#endif
  return &element_loop_portable<kStates, T, Formula>;
}

template <size_t kStates, Number T, class Formula>
void update_numbers(const at::Tensor& param, const at::Tensor& grad, const std::array<at::Tensor, 3>& states,
                    const Formula& formula) {
  auto* const loop = find_element_loop<kStates, T, Formula>();
  T* const p = param.mutable_data_ptr<T>();
  const T* const g = grad.const_data_ptr<T>();
  std::array<T*, 3> s{};
  for (size_t i = 0; i < kStates; ++i) s[i] = states[i].template mutable_data_ptr<T>();
  const auto at = [](T* data, int64_t begin) { return data == nullptr ? nullptr : data + begin; };
  at::parallel_for(0, param.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    loop(p + begin, g + begin, at(s[0], begin), at(s[1], begin), at(s[2], begin), end - begin, formula);
  });
}

/// Updates a parameter and its first `kStates` states, all in one memory order, by
/// `formula(V& param, const V& grad, V& first, V& second, V& third)`.
template <size_t kStates, class Formula>
void update_elements(const at::Tensor& param, const at::Tensor& grad, const std::array<at::Tensor, 3>& states,
                     const Formula& formula) {
  if (param.is_cpu() && param.scalar_type() == at::kFloat)
    return update_numbers<kStates, float>(param, grad, states, formula);
  if (param.is_cpu() && param.scalar_type() == at::kDouble)
    return update_numbers<kStates, double>(param, grad, states, formula);
  at::Tensor new_param = param;
  std::array<at::Tensor, 3> new_states = states;
  formula(new_param, grad, new_states[0], new_states[1], new_states[2]);
  param.copy_(new_param);
  for (size_t i = 0; i < kStates; ++i) states[i].copy_(new_states[i]);
}

}  // namespace levin::optim::detail
