#include <levin/strategies/comm/reduce_elements.h>

#include <levin/core/base/error.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#define LEVIN_HAS_AVX2_VARIANT 1
#endif

namespace levin {
namespace {

// With -O2 GCC does not vectorise these loops. Clang does.
#if defined(__GNUC__) && !defined(__clang__)
#define LEVIN_VECTORISED optimize("O3"),
#define LEVIN_NO_LOOP_DEPENDENCE _Pragma("GCC ivdep")
#else
#define LEVIN_VECTORISED
#define LEVIN_NO_LOOP_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#endif
#define LEVIN_INLINE __attribute__((always_inline)) inline

/// Elements worked on at a time: the accumulators stay in the first-level cache.
constexpr int64_t kBlock = 1024;

/// In what a type is accumulated.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<c10::Half> {
  using type = float;
};
template <>
struct AccumulatorOf<c10::BFloat16> {
  using type = float;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <ReduceOp kOp, class A>
LEVIN_INLINE A combine(A a, A b) {
  if constexpr (kOp == ReduceOp::kMin) {
    if constexpr (std::is_floating_point_v<A>) return a < b || a != a ? a : b;
    return a < b ? a : b;
  } else if constexpr (kOp == ReduceOp::kMax) {
    if constexpr (std::is_floating_point_v<A>) return a > b || a != a ? a : b;
    return a > b ? a : b;
  } else if constexpr (std::is_integral_v<A>) {
    // Wraps around, as everywhere in LibTorch, where the signed type's overflow would be undefined.
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) + static_cast<std::make_unsigned_t<A>>(b));
  } else {
    return a + b;
  }
}

/// The conversions between a stored type and its accumulator, in plain C++.
struct Portable {
  template <class T>
  LEVIN_INLINE static void widen(const T* from, Accumulator<T>* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Accumulator<T>>(from[i]);
  }
  template <class T>
  LEVIN_INLINE static void narrow(const Accumulator<T>* from, T* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
  }
};

template <class Conversion, class T, ReduceOp kOp>
LEVIN_INLINE void reduce_blocks(std::span<const void* const> sources, std::span<void* const> outputs, int64_t count) {
  using A = Accumulator<T>;
  constexpr bool kConverts = !std::is_same_v<A, T>;
  alignas(64) A accumulated[kBlock];
  alignas(64) A widened[kConverts ? kBlock : 1];
  const auto ranks = static_cast<A>(sources.size());

  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = std::min(kBlock, count - start);
    const T* first = static_cast<const T*>(sources[0]) + start;
    // The last source is combined straight into the first output, if nothing else has to be done to the result.
    T* direct = nullptr;
    if constexpr (!kConverts && kOp != ReduceOp::kMean)
      if (sources.size() > 1 && !outputs.empty()) direct = static_cast<T*>(outputs[0]) + start;
    if constexpr (kConverts)
      Conversion::template widen<T>(first, accumulated, size);
    else if (sources.size() == 1)
      std::memcpy(accumulated, first, size * sizeof(T));
    for (size_t source = 1; source < sources.size(); ++source) {
      const T* stored = static_cast<const T*>(sources[source]) + start;
      if constexpr (kConverts) {
        Conversion::template widen<T>(stored, widened, size);
        LEVIN_NO_LOOP_DEPENDENCE
        for (int64_t i = 0; i < size; ++i) accumulated[i] = combine<kOp>(accumulated[i], widened[i]);
      } else {
        const T* so_far = source == 1 ? first : accumulated;
        T* to = direct != nullptr && source + 1 == sources.size() ? direct : accumulated;
        LEVIN_NO_LOOP_DEPENDENCE
        for (int64_t i = 0; i < size; ++i) to[i] = combine<kOp>(so_far[i], stored[i]);
      }
    }
    if constexpr (kOp == ReduceOp::kMean)
      for (int64_t i = 0; i < size; ++i) accumulated[i] = static_cast<A>(accumulated[i] / ranks);
    for (size_t output = direct == nullptr ? 0 : 1; output < outputs.size(); ++output) {
      T* to = static_cast<T*>(outputs[output]) + start;
      if constexpr (kConverts)
        Conversion::template narrow<T>(accumulated, to, size);
      else
        std::memcpy(to, direct == nullptr ? accumulated : direct, size * sizeof(T));
    }
  }
}

template <class T>
LEVIN_INLINE void add_scaled_blocks(std::span<const void* const> sources, std::span<void* const> outputs, int64_t count,
                                    T factor) {
  alignas(64) T sum[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = std::min(kBlock, count - start);
    const T* first = static_cast<const T*>(sources[0]) + start;
    LEVIN_NO_LOOP_DEPENDENCE
    for (int64_t i = 0; i < size; ++i) sum[i] = first[i] * factor;
    for (size_t source = 1; source < sources.size(); ++source) {
      const T* other = static_cast<const T*>(sources[source]) + start;
      LEVIN_NO_LOOP_DEPENDENCE
      for (int64_t i = 0; i < size; ++i) sum[i] += other[i] * factor;
    }
    for (void* output : outputs) std::memcpy(static_cast<T*>(output) + start, sum, size * sizeof(T));
  }
}

using Reduce = void (*)(std::span<const void* const>, std::span<void* const>, int64_t);

struct PortableVariant {
  template <class T, ReduceOp kOp>
  __attribute__((LEVIN_VECTORISED noinline)) static void reduce(std::span<const void* const> sources,
                                                                std::span<void* const> outputs, int64_t count) {
    reduce_blocks<Portable, T, kOp>(sources, outputs, count);
  }
  template <class T>
  __attribute__((LEVIN_VECTORISED noinline)) static void add_scaled(std::span<const void* const> sources,
                                                                    std::span<void* const> outputs, int64_t count,
                                                                    T factor) {
    add_scaled_blocks<T>(sources, outputs, count, factor);
  }
};

#if defined(LEVIN_HAS_AVX2_VARIANT)
#define LEVIN_AVX2 target("avx2,f16c")

/// float16 takes instructions that the compiler does not find by itself.
struct Avx2Conversion {
  template <class T>
  __attribute__((LEVIN_VECTORISED LEVIN_AVX2, noinline)) static void widen(const T* from, float* to, int64_t count) {
    int64_t i = 0;
    if constexpr (std::is_same_v<T, c10::Half>)
      for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    Portable::widen<T>(from + i, to + i, count - i);
  }
  template <class T>
  __attribute__((LEVIN_VECTORISED LEVIN_AVX2, noinline)) static void narrow(const float* from, T* to, int64_t count) {
    int64_t i = 0;
    if constexpr (std::is_same_v<T, c10::Half>)
      for (; i + 8 <= count; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    Portable::narrow<T>(from + i, to + i, count - i);
  }
};

struct Avx2Variant {
  template <class T, ReduceOp kOp>
  __attribute__((LEVIN_VECTORISED LEVIN_AVX2, noinline)) static void reduce(std::span<const void* const> sources,
                                                                            std::span<void* const> outputs,
                                                                            int64_t count) {
    reduce_blocks<Avx2Conversion, T, kOp>(sources, outputs, count);
  }
  template <class T>
  __attribute__((LEVIN_VECTORISED LEVIN_AVX2, noinline)) static void add_scaled(std::span<const void* const> sources,
                                                                                std::span<void* const> outputs,
                                                                                int64_t count, T factor) {
    add_scaled_blocks<T>(sources, outputs, count, factor);
  }
};

bool has_avx2() {
  static const bool answer = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  return answer;
}
#endif

template <class T, ReduceOp kOp>
Reduce fastest_variant() {
#if defined(LEVIN_HAS_AVX2_VARIANT)
  if (has_avx2()) return Avx2Variant::reduce<T, kOp>;
#endif
  return PortableVariant::reduce<T, kOp>;
}

template <class T>
void add_scaled(std::span<const void* const> sources, std::span<void* const> outputs, int64_t count, double factor) {
#if defined(LEVIN_HAS_AVX2_VARIANT)
  if (has_avx2()) return Avx2Variant::add_scaled<T>(sources, outputs, count, static_cast<T>(factor));
#endif
  PortableVariant::add_scaled<T>(sources, outputs, count, static_cast<T>(factor));
}

template <class T>
Reduce find_for_type(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return fastest_variant<T, ReduceOp::kSum>();
    case ReduceOp::kMean:
      return fastest_variant<T, ReduceOp::kMean>();
    case ReduceOp::kMin:
      return fastest_variant<T, ReduceOp::kMin>();
    case ReduceOp::kMax:
      return fastest_variant<T, ReduceOp::kMax>();
  }
  return nullptr;
}

/// nullptr where can_reduce() is false.
Reduce find(at::ScalarType type, ReduceOp op) {
  switch (type) {
    case at::kFloat:
      return find_for_type<float>(op);
    case at::kDouble:
      return find_for_type<double>(op);
    case at::kHalf:
      return find_for_type<c10::Half>(op);
    case at::kBFloat16:
      return find_for_type<c10::BFloat16>(op);
    case at::kLong:
      return find_for_type<int64_t>(op);
    case at::kInt:
      return find_for_type<int32_t>(op);
    case at::kShort:
      return find_for_type<int16_t>(op);
    case at::kChar:
      return find_for_type<int8_t>(op);
    case at::kByte:
      return find_for_type<uint8_t>(op);
    case at::kBool:  // stored as 0 and 1
      if (op == ReduceOp::kMean) return nullptr;
      return find_for_type<uint8_t>(op == ReduceOp::kSum ? ReduceOp::kMax : op);
    default:
      return nullptr;
  }
}

}  // namespace

bool can_reduce(at::ScalarType type, ReduceOp op) { return find(type, op) != nullptr; }

void reduce_elements(std::span<const void* const> sources, std::span<void* const> outputs, int64_t count,
                     at::ScalarType type, ReduceOp op) {
  const Reduce reduce = find(type, op);
  LEVIN_CHECK(reduce != nullptr, "a reduction that can_reduce() refuses");
  reduce(sources, outputs, count);
}

bool can_add_scaled(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

void add_scaled_elements(std::span<const void* const> sources, std::span<void* const> outputs, int64_t count,
                         at::ScalarType type, double factor) {
  LEVIN_CHECK(can_add_scaled(type), "a sum that can_add_scaled() refuses");
  if (type == at::kFloat)
    add_scaled<float>(sources, outputs, count, factor);
  else
    add_scaled<double>(sources, outputs, count, factor);
}

}  // namespace levin
