#include <levin/core/nn/transformer/token_kernels.h>

#include <levin/core/nn/transformer/lanes.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace levin::nn::detail {
namespace {

template <size_t kLanes>
LEVIN_INLINE float dot(const float* a, const float* b, int64_t size) {
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  typename Lanes<kLanes>::Floats first = {}, second = {}, x, y;
  int64_t i = 0;
  for (; i + 2 * kStep <= size; i += 2 * kStep) {
    load(a + i, x);
    load(b + i, y);
    first += x * y;
    load(a + i + kStep, x);
    load(b + i + kStep, y);
    second += x * y;
  }
  for (; i + kStep <= size; i += kStep) {
    load(a + i, x);
    load(b + i, y);
    first += x * y;
  }
  first += second;
  float sum = sum_of(first);
  for (; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

template <size_t kLanes>
LEVIN_INLINE void normalize(const float* input, const float* weight, float offset, double eps, float* output,
                            int64_t rows, int64_t size) {
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  typename Lanes<kLanes>::Floats x, factors;
  for (int64_t row = 0; row < rows; ++row, input += size, output += size) {
    const double mean = static_cast<double>(dot<kLanes>(input, input, size)) / static_cast<double>(size);
    const auto factor = static_cast<float>(1 / std::sqrt(mean + eps));
    int64_t i = 0;
    if (weight == nullptr) {
      for (; i < size; ++i) output[i] = input[i] * factor;
      continue;
    }
    for (; i + kStep <= size; i += kStep) {
      load(input + i, x);
      load(weight + i, factors);
      x = x * factor * (factors + offset);
      store(output + i, x);
    }
    for (; i < size; ++i) output[i] = input[i] * factor * (weight[i] + offset);
  }
}

template <size_t kLanes>
LEVIN_INLINE void attend(const CachedAttention& a, int64_t index, float* scores) {
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  using Floats = typename Lanes<kLanes>::Floats;
  using Ints = typename Lanes<kLanes>::Ints;
  const int64_t row = index / a.key_value_heads;
  const int64_t head = index % a.key_value_heads;
  const int64_t group = a.heads / a.key_value_heads;
  const float* const keys = a.keys + row * a.row_stride + head * a.head_stride;
  const float* const values = a.values + row * a.row_stride + head * a.head_stride;
  const int64_t first = (row * a.heads + head * group) * a.head_dim;
  const bool* const mask = a.mask == nullptr ? nullptr : a.mask + row * a.places;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int64_t place = 0; place < a.places; ++place) {
    const bool counts = mask == nullptr || mask[place];
    for (int64_t query = 0; query < group; ++query)
      scores[query * a.places + place] =
          counts ? a.scale * dot<kLanes>(a.queries + first + query * a.head_dim, keys + place * a.head_dim, a.head_dim)
                 : kNone;
  }
  for (int64_t query = 0; query < group; ++query) {
    float* const own = scores + query * a.places;
    float most = kNone;
    for (int64_t place = 0; place < a.places; ++place) most = std::max(most, own[place]);
    Floats sums = {}, x;
    int64_t place = 0;
    for (; place + kStep <= a.places; place += kStep) {
      load(own + place, x);
      x -= most;
      exponentiate<Floats, Ints>(x);
      store(own + place, x);
      sums += x;
    }
    float sum = sum_of(sums);
    for (; place < a.places; ++place) sum += own[place] = std::exp(own[place] - most);
    const float share = 1 / sum;
    float* const output = a.output + first + query * a.head_dim;
    int64_t i = 0;
    for (; i + kStep <= a.head_dim; i += kStep) {
      Floats even = {}, odd = {};
      int64_t p = 0;
      for (; p + 2 <= a.places; p += 2) {
        load(values + p * a.head_dim + i, x);
        even += x * own[p];
        load(values + (p + 1) * a.head_dim + i, x);
        odd += x * own[p + 1];
      }
      if (p < a.places) {
        load(values + p * a.head_dim + i, x);
        even += x * own[p];
      }
      even = (even + odd) * share;
      store(output + i, even);
    }
    for (; i < a.head_dim; ++i) {
      float mixed = 0;
      for (int64_t p = 0; p < a.places; ++p) mixed += values[p * a.head_dim + i] * own[p];
      output[i] = mixed * share;
    }
  }
}

template <size_t kLanes>
LEVIN_INLINE void multiply_silu(const float* gate, const float* up, float* output, int64_t count) {
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  using Floats = typename Lanes<kLanes>::Floats;
  using Ints = typename Lanes<kLanes>::Ints;
  Floats x, y, share;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    load(gate + i, x);
    load(up + i, y);
    sigmoid<Floats, Ints>(x, share);
    x = x * share * y;
    store(output + i, x);
  }
  for (; i < count; ++i) output[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
}

#if defined(LEVIN_HAS_X86_VECTORS)
LEVIN_TARGET_AVX2 void normalize_avx2(const float* input, const float* weight, float offset, double eps, float* output,
                                      int64_t rows, int64_t size) {
  normalize<8>(input, weight, offset, eps, output, rows, size);
}
LEVIN_TARGET_AVX512 void normalize_avx512(const float* input, const float* weight, float offset, double eps,
                                          float* output, int64_t rows, int64_t size) {
  normalize<16>(input, weight, offset, eps, output, rows, size);
}
LEVIN_TARGET_AVX2 void attend_avx2(const CachedAttention& a, int64_t index, float* scores) {
  attend<8>(a, index, scores);
}
LEVIN_TARGET_AVX512 void attend_avx512(const CachedAttention& a, int64_t index, float* scores) {
  attend<16>(a, index, scores);
}
LEVIN_TARGET_AVX2 void silu_avx2(const float* gate, const float* up, float* output, int64_t count) {
  multiply_silu<8>(gate, up, output, count);
}
LEVIN_TARGET_AVX512 void silu_avx512(const float* gate, const float* up, float* output, int64_t count) {
  multiply_silu<16>(gate, up, output, count);
}
#endif

}  // namespace

void normalize_rows(const float* input, const float* weight, float offset, double eps, float* output, int64_t rows,
                    int64_t size, VectorSet vectors) {
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx512) return normalize_avx512(input, weight, offset, eps, output, rows, size);
  if (vectors >= VectorSet::kAvx2) return normalize_avx2(input, weight, offset, eps, output, rows, size);
#endif
  normalize<4>(input, weight, offset, eps, output, rows, size);
}

void rotate_heads(float* x, const float* cosines, const float* sines, int64_t rows, int64_t table_stride, int64_t heads,
                  int64_t head_dim, int64_t half) {
  for (int64_t row = 0; row < rows; ++row, cosines += table_stride, sines += table_stride)
    for (int64_t head = 0; head < heads; ++head, x += head_dim)
      for (int64_t i = 0; i < half; ++i) {
        const float first = x[i];
        const float second = x[half + i];
        x[i] = first * cosines[i] - second * sines[i];
        x[half + i] = second * cosines[i] + first * sines[i];
      }
}

void attend_to_cache(const CachedAttention& attention, int64_t index, float* scores, VectorSet vectors) {
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx512) return attend_avx512(attention, index, scores);
  if (vectors >= VectorSet::kAvx2) return attend_avx2(attention, index, scores);
#endif
  attend<4>(attention, index, scores);
}

void multiply_by_silu(const float* gate, const float* up, float* output, int64_t count, VectorSet vectors) {
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx512) return silu_avx512(gate, up, output, count);
  if (vectors >= VectorSet::kAvx2) return silu_avx2(gate, up, output, count);
#endif
  multiply_silu<4>(gate, up, output, count);
}

}  // namespace levin::nn::detail
