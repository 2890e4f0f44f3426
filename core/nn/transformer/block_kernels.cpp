#include <levin/core/nn/transformer/block_kernels.h>

#include <levin/core/nn/transformer/lanes.h>

#include <algorithm>
#include <cmath>

namespace levin::nn::detail {
namespace {

constexpr int64_t kStep = 16;
using Floats = Lanes<kStep>::Floats;
using Ints = Lanes<kStep>::Ints;

/// Elements that a step takes: a vector's, or what is left, of which it makes a vector with zeros at the end.
struct Whole {};
template <class Element>
LEVIN_INLINE void take(const Element* from, Whole, Floats& value) {
  load(from, value);
}
template <class Element>
LEVIN_INLINE void take(const Element* from, int64_t count, Floats& value) {
  Element padded[kStep] = {};
  std::copy_n(from, count, padded);
  load(padded, value);
}
template <class Element>
LEVIN_INLINE void put(Element* to, Whole, const Floats& value) {
  store(to, value);
}
template <class Element>
LEVIN_INLINE void put(Element* to, int64_t count, const Floats& value) {
  Element padded[kStep];
  store(padded, value);
  std::copy_n(padded, count, to);
}

/// Calls `step(i, count)` for all of `size` elements.
template <class Step>
LEVIN_INLINE void for_vectors(int64_t size, const Step& step) {
  int64_t i = 0;
  for (; i + kStep <= size; i += kStep) step(i, Whole());
  if (i < size) step(i, size - i);
}

template <class Element>
LEVIN_INLINE void forward_rows(const Element* x, const float* weight, double eps, Element* y, float* factors,
                               int64_t rows, int64_t size) {
  for (int64_t row = 0; row < rows; ++row, x += size, y += size) {
    Floats squares = {}, value, scale;
    for_vectors(size, [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
      take(x + i, count, value);
      squares += value * value;
    });
    const double mean = static_cast<double>(sum_of(squares)) / static_cast<double>(size);
    const auto factor = static_cast<float>(1 / std::sqrt(mean + eps));
    factors[row] = factor;
    for_vectors(size, [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
      take(x + i, count, value);
      value *= factor;
      if (weight != nullptr) {
        take(weight + i, count, scale);
        value *= scale;
      }
      put(y + i, count, value);
    });
  }
}

template <class Element>
LEVIN_INLINE void backward_rows(const Element* y_slope, const Element* x, const float* weight, const float* factors,
                                Element* x_slope, float* weight_slope, int64_t rows, int64_t size) {
  for (int64_t row = 0; row < rows; ++row, y_slope += size, x += size) {
    const float factor = factors[row];
    Floats products = {}, slope, value, scale, sum;
    const auto take_scaled = [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
      if (weight == nullptr) return;
      take(weight + i, count, scale);
      slope *= scale;
    };
    for_vectors(size, [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
      take(y_slope + i, count, slope);
      take(x + i, count, value);
      if (weight_slope != nullptr) {
        take(weight_slope + i, count, sum);
        sum += slope * value * factor;
        put(weight_slope + i, count, sum);
      }
      take_scaled(i, count);
      products += slope * value;
    });
    if (x_slope == nullptr) continue;
    const float along = sum_of(products) * factor * factor * factor / static_cast<float>(size);
    for_vectors(size, [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
      take(y_slope + i, count, slope);
      take(x + i, count, value);
      take_scaled(i, count);
      slope = slope * factor - value * along;
      put(x_slope + i, count, slope);
    });
    x_slope += size;
  }
}

template <class Element>
LEVIN_INLINE void silu_forward(const Element* gate, const Element* up, Element* output, int64_t size) {
  Floats x, y, share;
  for_vectors(size, [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
    take(gate + i, count, x);
    take(up + i, count, y);
    sigmoid<Floats, Ints>(x, share);
    x = x * share * y;
    put(output + i, count, x);
  });
}

template <class Element>
LEVIN_INLINE void silu_backward(const Element* slope, const Element* gate, const Element* up, Element* gate_slope,
                                Element* up_slope, int64_t size) {
  Floats s, x, y, share;
  for_vectors(size, [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
    take(slope + i, count, s);
    take(gate + i, count, x);
    take(up + i, count, y);
    sigmoid<Floats, Ints>(x, share);
    y *= s * share * (1 + x * (1 - share));
    s *= x * share;
    put(gate_slope + i, count, y);
    put(up_slope + i, count, s);
  });
}

template <class Element>
LEVIN_INLINE void rotate(Heads<const Element*> x, const Element* cosines, const Element* sines, Heads<Element*> y,
                         int64_t heads, int64_t half, int64_t head_dim, bool back) {
  const float sign = back ? -1.0F : 1.0F;
  Floats first, second, cosine, sine, turned;
  for_vectors(half, [&](int64_t i, auto count) LEVIN_INLINE_LAMBDA {
    take(cosines + i, count, cosine);
    take(sines + i, count, sine);
    sine *= sign;
    for (int64_t head = 0; head < heads; ++head) {
      const Element* const from = x.first + head * x.stride + i;
      Element* const to = y.first + head * y.stride + i;
      take(from, count, first);
      take(from + half, count, second);
      turned = first * cosine - second * sine;
      put(to, count, turned);
      turned = second * cosine + first * sine;
      put(to + half, count, turned);
    }
  });
  if (2 * half == head_dim) return;
  for (int64_t head = 0; head < heads; ++head) {
    const Element* const from = x.first + head * x.stride;
    std::copy(from + 2 * half, from + head_dim, y.first + head * y.stride + 2 * half);
  }
}

#if defined(LEVIN_HAS_X86_VECTORS)
// One for each set: the bodies are inlined into it.
#define LEVIN_BLOCK_KERNELS(TARGET, SUFFIX)                                                                        \
  template <class Element>                                                                                         \
  TARGET void forward_rows_##SUFFIX(const Element* x, const float* weight, double eps, Element* y, float* factors, \
                                    int64_t rows, int64_t size) {                                                  \
    forward_rows(x, weight, eps, y, factors, rows, size);                                                          \
  }                                                                                                                \
  template <class Element>                                                                                         \
  TARGET void backward_rows_##SUFFIX(const Element* y_slope, const Element* x, const float* weight,                \
                                     const float* factors, Element* x_slope, float* weight_slope, int64_t rows,    \
                                     int64_t size) {                                                               \
    backward_rows(y_slope, x, weight, factors, x_slope, weight_slope, rows, size);                                 \
  }                                                                                                                \
  template <class Element>                                                                                         \
  TARGET void silu_forward_##SUFFIX(const Element* gate, const Element* up, Element* output, int64_t count) {      \
    silu_forward(gate, up, output, count);                                                                         \
  }                                                                                                                \
  template <class Element>                                                                                         \
  TARGET void silu_backward_##SUFFIX(const Element* slope, const Element* gate, const Element* up,                 \
                                     Element* gate_slope, Element* up_slope, int64_t count) {                      \
    silu_backward(slope, gate, up, gate_slope, up_slope, count);                                                   \
  }                                                                                                                \
  template <class Element>                                                                                         \
  TARGET void rotate_##SUFFIX(Heads<const Element*> x, const Element* cosines, const Element* sines,               \
                              Heads<Element*> y, int64_t heads, int64_t half, int64_t head_dim, bool back) {       \
    rotate(x, cosines, sines, y, heads, half, head_dim, back);                                                     \
  }
LEVIN_BLOCK_KERNELS(LEVIN_TARGET_AVX2, avx2)
LEVIN_BLOCK_KERNELS(LEVIN_TARGET_AVX512, avx512)
#undef LEVIN_BLOCK_KERNELS
#define LEVIN_CALL_BEST(name, ...)                                      \
  if (vectors >= VectorSet::kAvx512) return name##_avx512(__VA_ARGS__); \
  if (vectors >= VectorSet::kAvx2) return name##_avx2(__VA_ARGS__)
#else
#define LEVIN_CALL_BEST(name, ...) (void)vectors
#endif

}  // namespace

template <class Element>
void normalize_rows_forward(const Element* x, const float* weight, double eps, Element* y, float* factors, int64_t rows,
                            int64_t size, VectorSet vectors) {
  LEVIN_CALL_BEST(forward_rows, x, weight, eps, y, factors, rows, size);
  forward_rows(x, weight, eps, y, factors, rows, size);
}

template <class Element>
void normalize_rows_backward(const Element* y_slope, const Element* x, const float* weight, const float* factors,
                             Element* x_slope, float* weight_slope, int64_t rows, int64_t size, VectorSet vectors) {
  LEVIN_CALL_BEST(backward_rows, y_slope, x, weight, factors, x_slope, weight_slope, rows, size);
  backward_rows(y_slope, x, weight, factors, x_slope, weight_slope, rows, size);
}

template <class Element>
void silu_multiply_forward(const Element* gate, const Element* up, Element* output, int64_t count, VectorSet vectors) {
  LEVIN_CALL_BEST(silu_forward, gate, up, output, count);
  silu_forward(gate, up, output, count);
}

template <class Element>
void silu_multiply_backward(const Element* slope, const Element* gate, const Element* up, Element* gate_slope,
                            Element* up_slope, int64_t count, VectorSet vectors) {
  LEVIN_CALL_BEST(silu_backward, slope, gate, up, gate_slope, up_slope, count);
  silu_backward(slope, gate, up, gate_slope, up_slope, count);
}

template <class Element>
void rotate_token(Heads<const Element*> x, const Element* cosines, const Element* sines, Heads<Element*> y,
                  int64_t heads, int64_t half, int64_t head_dim, bool back, VectorSet vectors) {
  LEVIN_CALL_BEST(rotate, x, cosines, sines, y, heads, half, head_dim, back);
  rotate(x, cosines, sines, y, heads, half, head_dim, back);
}

#undef LEVIN_CALL_BEST
#define LEVIN_FOR_ELEMENT(Element)                                                                                     \
  template void normalize_rows_forward(const Element*, const float*, double, Element*, float*, int64_t, int64_t,       \
                                       VectorSet);                                                                     \
  template void normalize_rows_backward(const Element*, const Element*, const float*, const float*, Element*, float*,  \
                                        int64_t, int64_t, VectorSet);                                                  \
  template void silu_multiply_forward(const Element*, const Element*, Element*, int64_t, VectorSet);                   \
  template void silu_multiply_backward(const Element*, const Element*, const Element*, Element*, Element*, int64_t,    \
                                       VectorSet);                                                                     \
  template void rotate_token(Heads<const Element*>, const Element*, const Element*, Heads<Element*>, int64_t, int64_t, \
                             int64_t, bool, VectorSet)
LEVIN_FOR_ELEMENT(float);
LEVIN_FOR_ELEMENT(c10::BFloat16);
#undef LEVIN_FOR_ELEMENT

}  // namespace levin::nn::detail
