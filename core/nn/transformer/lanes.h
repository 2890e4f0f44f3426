#pragma once

#include <levin/core/base/vector_set.h>

#include <c10/util/BFloat16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Vectors that the kernels of this folder are written with. Private to their sources.
namespace levin::nn::detail {

/// Vectors of so many floats; the compiler divides them where the processor's are shorter.
template <size_t kLanes>
struct Lanes {
  typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
  typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
  typedef uint32_t Bits __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));
};

// Vectors are handed over by reference: by value they would be in registers that only some processors have.
template <class Floats>
LEVIN_INLINE void load(const float* from, Floats& value) {
  std::memcpy(&value, from, sizeof value);
}
template <class Floats>
LEVIN_INLINE void store(float* to, const Floats& value) {
  std::memcpy(to, &value, sizeof value);
}

template <class Floats>
LEVIN_INLINE void load(const c10::BFloat16* from, Floats& value) {
  using L = Lanes<sizeof(Floats) / sizeof(float)>;
  typename L::Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  const typename L::Bits bits = __builtin_convertvector(halves, typename L::Bits) << 16U;
  std::memcpy(&value, &bits, sizeof value);
}
/// Rounds to the nearest, ties to even.
template <class Floats>
LEVIN_INLINE void store(c10::BFloat16* to, const Floats& value) {
  using L = Lanes<sizeof(Floats) / sizeof(float)>;
  typename L::Bits bits;
  std::memcpy(&bits, &value, sizeof bits);
  const typename L::Bits rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const typename L::Bits chosen = value == value ? rounded : typename L::Bits{} + 0x7FC0U;
  const typename L::Halves halves = __builtin_convertvector(chosen, typename L::Halves);
  std::memcpy(to, &halves, sizeof halves);
}

template <class Floats>
LEVIN_INLINE float sum_of(const Floats& value) {
  float sum = 0;
  for (size_t i = 0; i < sizeof(Floats) / sizeof(float); ++i) sum += value[i];
  return sum;
}

/// The exponential to two units in the last place, 0 below the smallest normal number: Cody and Waite's reduction, and
/// a polynomial on [−ln 2 / 2, ln 2 / 2].
template <class Floats, class Ints>
LEVIN_INLINE void exponentiate(Floats& x) {
  constexpr float kLowest = -87.3F;
  constexpr float kHighest = 88.3F;
  const auto is_low = x < kLowest;
  x = is_low ? Floats{} + kLowest : x;
  x = x > kHighest ? Floats{} + kHighest : x;
  const Floats scaled = x * 1.44269504088896341F;
  const Floats half = scaled < 0 ? Floats{} - 0.5F : Floats{} + 0.5F;
  const Ints power = __builtin_convertvector(scaled + half, Ints);
  const Floats whole = __builtin_convertvector(power, Floats);
  const Floats rest = (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
  Floats value = rest * 1.9875691500e-4F + 1.3981999507e-3F;
  value = value * rest + 8.3334519073e-3F;
  value = value * rest + 4.1665795894e-2F;
  value = value * rest + 1.6666665459e-1F;
  value = value * rest + 5.0000001201e-1F;
  value = value * rest * rest + rest + 1;
  const Ints bits = (power + 127) << 23;
  Floats factor;
  std::memcpy(&factor, &bits, sizeof factor);
  x = is_low ? Floats{} : value * factor;
}

/// 1 / (1 + exp(−x)), 0 where the exponential would be too large for a float.
template <class Floats, class Ints>
LEVIN_INLINE void sigmoid(const Floats& x, Floats& result) {
  result = -x;
  exponentiate<Floats, Ints>(result);
  result = 1 / (1 + result);
  result = x < -88.0F ? Floats{} : result;
}

}  // namespace levin::nn::detail
