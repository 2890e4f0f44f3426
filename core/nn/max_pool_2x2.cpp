#include <levin/core/nn/max_pool_2x2.h>

#include <cstddef>
#include <cstring>
#include <utility>

namespace levin {
namespace {

/// Vectors of so many elements; the compiler divides them where the processor's are shorter.
template <size_t kLanes>
struct Vector {
  typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
  typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
  typedef int64_t Longs __attribute__((vector_size(kLanes * sizeof(int64_t))));
};

/// kLanes windows side by side. `index` is that of the first element of the first window.
template <size_t... kLane>
LEVIN_INLINE void pool_windows(std::index_sequence<kLane...>, const float* upper, int32_t width, int32_t index,
                               float* output, int64_t* indices) {
  using V = Vector<sizeof...(kLane)>;
  constexpr size_t kLanes = sizeof...(kLane);
  typename V::Floats upper_left, upper_right, lower_left, lower_right;
  std::memcpy(&upper_left, upper, sizeof upper_left);
  std::memcpy(&upper_right, upper + kLanes, sizeof upper_right);
  std::memcpy(&lower_left, upper + width, sizeof lower_left);
  std::memcpy(&lower_right, upper + width + kLanes, sizeof lower_right);

  typename V::Floats best = __builtin_shufflevector(upper_left, upper_right, (2 * kLane)...);
  typename V::Ints best_at = {};
  const auto take = [&](const typename V::Floats& other, int32_t at) LEVIN_INLINE_LAMBDA {
    const auto better = (other > best) | (other != other);
    best = better ? other : best;
    best_at = better ? typename V::Ints{} + at : best_at;
  };
  take(__builtin_shufflevector(upper_left, upper_right, (2 * kLane + 1)...), 1);
  take(__builtin_shufflevector(lower_left, lower_right, (2 * kLane)...), width);
  take(__builtin_shufflevector(lower_left, lower_right, (2 * kLane + 1)...), width + 1);

  const typename V::Ints windows = {static_cast<int32_t>(2 * kLane)...};
  const auto found = __builtin_convertvector(windows + index + best_at, typename V::Longs);
  std::memcpy(output, &best, sizeof best);
  std::memcpy(indices, &found, sizeof found);
}

template <size_t kLanes>
LEVIN_INLINE void pool_row(const float* upper, int32_t width, int32_t index, float* output, int64_t* indices) {
  const int32_t windows = width / 2;
  const auto pool_at = [&](int32_t window) LEVIN_INLINE_LAMBDA {
    pool_windows(std::make_index_sequence<kLanes>(), upper + 2 * window, width, index + 2 * window, output + window,
                 indices + window);
  };
  int32_t window = 0;
  for (; window + static_cast<int32_t>(kLanes) <= windows; window += kLanes) pool_at(window);
  if (window < windows) pool_at(windows - static_cast<int32_t>(kLanes));  // Some once more, to the same effect.
}

template <size_t kMostLanes>
LEVIN_INLINE void pool_planes(const float* input, float* output, int64_t* indices, int64_t planes, int64_t height,
                              int64_t width) {
  const int64_t windows = width / 2;
  const auto columns = static_cast<int32_t>(width);
  for (int64_t plane = 0; plane < planes; ++plane, input += height * width) {
    for (int64_t row = 0; row < height / 2; ++row, output += windows, indices += windows) {
      const float* const upper = input + 2 * row * width;
      const auto index = static_cast<int32_t>(2 * row * width);
      if (kMostLanes >= 8 && windows >= 8)
        pool_row<8>(upper, columns, index, output, indices);
      else if (windows >= 4)
        pool_row<4>(upper, columns, index, output, indices);
      else
        pool_row<1>(upper, columns, index, output, indices);
    }
  }
}

#if defined(LEVIN_HAS_X86_VECTORS)
// Longer vectors, which AVX-512 has, gain nothing: the loop waits for memory.
LEVIN_TARGET_AVX2 void pool_avx2(const float* input, float* output, int64_t* indices, int64_t planes, int64_t height,
                                 int64_t width) {
  pool_planes<8>(input, output, indices, planes, height, width);
}
#endif

}  // namespace

void max_pool_2x2(const float* input, float* output, int64_t* indices, int64_t planes, int64_t height, int64_t width,
                  VectorSet vectors) {
  if (width < 2) return;
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx2) return pool_avx2(input, output, indices, planes, height, width);
#endif
  pool_planes<4>(input, output, indices, planes, height, width);
}

}  // namespace levin
