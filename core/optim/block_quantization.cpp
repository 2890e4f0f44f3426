#include <levin/core/optim/block_quantization.h>

#include <levin/core/base/mutex.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>

#if defined(LEVIN_HAS_X86_VECTORS)
#include <immintrin.h>
#endif

namespace levin::optim {
namespace {

constexpr int kDecades = 7;
/// With a smaller scale the products with the least value would not have all their bits.
constexpr float kLeastScale = 0x1p-104F;

/// What the arithmetic needs. Magnitudes are numbered: 0, then those of the lowest decade and so on, then 1. Worked out
/// in double precision when the program is compiled.
template <QuantizedRange kRange>
struct Values {
  static constexpr bool kSigned = kRange == QuantizedRange::kSigned;
  /// Values of the lowest decade.
  static constexpr int kBins = kSigned ? 1 : 2;
  /// The number of 1.
  static constexpr int kTop = (kBins << kDecades) - kBins + 1;

  static constexpr double power(int decade) {
    double value = 1;
    for (int i = decade; i < kDecades - 1; ++i) value /= 10;
    return value;
  }
  static constexpr double bins(int decade) { return kBins * static_cast<double>(1 << decade); }
  static constexpr double value(int decade, double bin) {
    return power(decade) * (0.1 + 0.9 * (bin + 0.5) / bins(decade));
  }

  // A magnitude is odd · slope + offset, where `odd`, 2 · number + 1 of a signed one and number + 1 of the others, has
  // the decade as its exponent. That of 1 and 257 (256) is the eighth, whose line goes through 0 and 1.
  std::array<float, 8> slope{};
  std::array<float, 8> offset{};
  // The number of a magnitude is the whole part of magnitude · gain + start, but at most `most`: by how many of the
  // thresholds, the midpoints between decades, it reaches.
  std::array<float, 8> threshold{};
  std::array<float, 8> gain{};
  std::array<float, 8> start{};
  std::array<float, 8> most{};

  constexpr Values() {
    const int first = kBins - 1;  // numbers of a decade begin with its number of bins, less this
    for (int i = 0; i < kDecades; ++i) {
      const double width = 2 << i;
      slope.at(i) = static_cast<float>(0.9 * power(i) / width);
      offset.at(i) = static_cast<float>(power(i) * ((kSigned ? 0 : 0.45 / width) - 0.8));
      gain.at(i + 1) = static_cast<float>(bins(i) / (0.9 * power(i)));
      start.at(i + 1) = static_cast<float>(bins(i) * 8 / 9 - first);
      most.at(i + 1) = static_cast<float>(2 * bins(i) - 1 - first);
    }
    slope[kDecades] = kSigned ? 1.0F / 256 : 1.0F / 255;
    offset[kDecades] = -slope[kDecades];
    for (int i = 0; i <= kDecades; ++i) {
      const double below = i == 0 ? 0 : value(i - 1, bins(i - 1) - 1);
      const double above = i == kDecades ? 1 : value(i, 0);
      threshold.at(i) = static_cast<float>((below + above) / 2);
    }
  }
};

template <QuantizedRange kRange>
constexpr Values<kRange> kValues;

// A line between powers of two is the decimal logarithm, but for 0.03 at most. The whole part of it, 7.5 added, is the
// number of thresholds that a magnitude reaches, or one less: the next threshold decides.
constexpr float kLogarithmSlope = static_cast<float>(0.30103 / (1 << 23));
constexpr float kLogarithmOffset = static_cast<float>(kDecades + 0.5 - 127 * 0.30103);

template <QuantizedRange kRange>
LEVIN_INLINE float dequantized(uint8_t code) {
  using V = Values<kRange>;
  constexpr const V& v = kValues<kRange>;
  const int32_t number = V::kSigned ? static_cast<int32_t>(code) - 127 : static_cast<int32_t>(code);
  const auto odd = static_cast<float>(V::kSigned ? 2 * std::abs(number) + 1 : number + 1);
  const uint32_t decade = (std::bit_cast<uint32_t>(odd) >> 23) & 7;
  const float magnitude = odd * v.slope[decade] + v.offset[decade];
  return number < 0 ? -magnitude : magnitude;
}

template <QuantizedRange kRange>
LEVIN_INLINE uint8_t quantized(float value) {
  using V = Values<kRange>;
  constexpr const V& v = kValues<kRange>;
  const float magnitude = std::fabs(value);
  int32_t number = V::kTop;
  if (magnitude < v.threshold[kDecades]) {
    const auto bits = static_cast<float>(std::bit_cast<int32_t>(magnitude));
    const float logarithm = bits * kLogarithmSlope + kLogarithmOffset;
    auto decade = static_cast<int32_t>(logarithm < 0 ? 0 : logarithm);
    if (magnitude >= v.threshold[decade]) ++decade;
    const float place = magnitude * v.gain[decade] + v.start[decade];
    number = static_cast<int32_t>(place < v.most[decade] ? place : v.most[decade]);
  }
  if (!V::kSigned) return static_cast<uint8_t>(number);
  return static_cast<uint8_t>(127 + (value < 0 ? -std::min(number, V::kTop - 1) : number));
}

#if defined(LEVIN_HAS_X86_VECTORS)
// The same for eight numbers at a time, with the tables in registers; compilers do not find this by themselves.

constexpr int64_t kLanes = 8;

template <QuantizedRange kRange>
LEVIN_TARGET_AVX2 int64_t dequantize_avx2(const uint8_t* codes, float scale, float* values, int64_t count) {
  constexpr bool kSigned = Values<kRange>::kSigned;
  const __m256i one = _mm256_set1_epi32(1);
  const __m256 slope = _mm256_loadu_ps(kValues<kRange>.slope.data());
  const __m256 offset = _mm256_loadu_ps(kValues<kRange>.offset.data());
  const __m256 scales = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __m256i number = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
    __m256i sign = _mm256_setzero_si256();
    if (kSigned) {
      number = _mm256_sub_epi32(number, _mm256_set1_epi32(127));
      sign = _mm256_slli_epi32(_mm256_srli_epi32(number, 31), 31);
      number = _mm256_abs_epi32(number);
      number = _mm256_add_epi32(number, number);
    }
    const __m256 odd = _mm256_cvtepi32_ps(_mm256_add_epi32(number, one));
    const __m256i decade = _mm256_srli_epi32(_mm256_castps_si256(odd), 23);  // of which the lowest three bits are read
    __m256 value = _mm256_add_ps(_mm256_mul_ps(odd, _mm256_permutevar8x32_ps(slope, decade)),
                                 _mm256_permutevar8x32_ps(offset, decade));
    if (kSigned) value = _mm256_xor_ps(value, _mm256_castsi256_ps(sign));
    _mm256_storeu_ps(values + i, _mm256_mul_ps(value, scales));
  }
  return i;
}

template <QuantizedRange kRange>
LEVIN_TARGET_AVX2 int64_t quantize_avx2(const float* values, float inverse, uint8_t* codes, int64_t count) {
  using V = Values<kRange>;
  const V& v = kValues<kRange>;
  const __m256 threshold = _mm256_loadu_ps(v.threshold.data());
  const __m256 gain = _mm256_loadu_ps(v.gain.data());
  const __m256 start = _mm256_loadu_ps(v.start.data());
  const __m256 most = _mm256_loadu_ps(v.most.data());
  const __m256 highest = _mm256_set1_ps(v.threshold[kDecades]);
  const __m256 inverses = _mm256_set1_ps(inverse);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    __m256i found[4];
    for (int64_t part = 0; part < 4; ++part) {
      const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(values + i + part * kLanes), inverses);
      const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0F), value);
      const __m256 bits = _mm256_cvtepi32_ps(_mm256_castps_si256(magnitude));
      const __m256 logarithm =
          _mm256_add_ps(_mm256_mul_ps(bits, _mm256_set1_ps(kLogarithmSlope)), _mm256_set1_ps(kLogarithmOffset));
      __m256i decade = _mm256_cvttps_epi32(_mm256_max_ps(logarithm, _mm256_setzero_ps()));
      const __m256 reaches = _mm256_cmp_ps(magnitude, _mm256_permutevar8x32_ps(threshold, decade), _CMP_GE_OQ);
      decade = _mm256_sub_epi32(decade, _mm256_castps_si256(reaches));
      const __m256 place = _mm256_add_ps(_mm256_mul_ps(magnitude, _mm256_permutevar8x32_ps(gain, decade)),
                                         _mm256_permutevar8x32_ps(start, decade));
      __m256i number = _mm256_cvttps_epi32(_mm256_min_ps(place, _mm256_permutevar8x32_ps(most, decade)));
      const __m256i is_top = _mm256_castps_si256(_mm256_cmp_ps(magnitude, highest, _CMP_GE_OQ));
      __m256i top = _mm256_set1_epi32(V::kTop);
      if (V::kSigned) {
        const __m256i negative = _mm256_castps_si256(_mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_LT_OQ));
        top = _mm256_add_epi32(top, negative);
        number = _mm256_blendv_epi8(number, top, is_top);
        number = _mm256_sub_epi32(_mm256_xor_si256(number, negative), negative);
        number = _mm256_add_epi32(number, _mm256_set1_epi32(127));
      } else {
        number = _mm256_blendv_epi8(number, top, is_top);
      }
      found[part] = number;
    }
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(found[0], found[1]), _mm256_packus_epi32(found[2], found[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  return i;
}
#endif

template <QuantizedRange kRange>
void dequantize_numbers(const uint8_t* codes, float scale, float* values, int64_t count,
                        [[maybe_unused]] VectorSet vectors) {
  int64_t i = 0;
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx2) i = dequantize_avx2<kRange>(codes, scale, values, count);
#endif
  for (; i < count; ++i) values[i] = dequantized<kRange>(codes[i]) * scale;
}

template <QuantizedRange kRange>
void quantize_numbers(const float* values, float inverse, uint8_t* codes, int64_t count,
                      [[maybe_unused]] VectorSet vectors) {
  int64_t i = 0;
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx2) i = quantize_avx2<kRange>(values, inverse, codes, count);
#endif
  for (; i < count; ++i) codes[i] = quantized<kRange>(values[i] * inverse);
}

/// The number of the greatest magnitude; of two alike the negative one. As whole numbers, which compilers make vectors
/// of, and of which those that are no numbers are the greatest.
LEVIN_INLINE float greatest(const float* values, int64_t count) {
  uint32_t key = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, values + i, sizeof bits);
    key = std::max(key, std::rotl(bits, 1));
  }
  return std::bit_cast<float>(std::rotr(key, 1));
}

float greatest_portable(const float* values, int64_t count) { return greatest(values, count); }
#if defined(LEVIN_HAS_X86_VECTORS)
LEVIN_TARGET_AVX2 float greatest_avx2(const float* values, int64_t count) { return greatest(values, count); }
#endif

float greatest_of(const float* values, int64_t count, [[maybe_unused]] VectorSet vectors) {
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx2) return greatest_avx2(values, count);
#endif
  return greatest_portable(values, count);
}

/// The numbers in their order in memory.
at::Tensor flat(const at::Tensor& values) { return values.as_strided({values.numel()}, {1}); }

/// For devices other than the CPU.
struct Table {
  at::Tensor values;   ///< of each code
  at::Tensor middles;  ///< between two values
};
struct Tables {
  Mutex mutex;
  std::map<std::pair<std::string, QuantizedRange>, Table> by_device LEVIN_GUARDED_BY(mutex);
};

/// Made when it is first asked for: a copy to the device makes the host wait.
const Table& table_on(const at::Device& device, QuantizedRange range) {
  // Never destroyed: devices may be gone before.
  static auto* const tables = new Tables;
  const MutexLock lock(tables->mutex);
  const auto [found, is_new] = tables->by_device.try_emplace({device.str(), range});
  if (is_new) {
    std::array<uint8_t, 256> codes{};
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
    const at::Tensor values = at::empty({256}, at::kFloat);
    dequantize_block(codes.data(), 1, values.mutable_data_ptr<float>(), 256, range);
    const at::Tensor middles = (values.slice(0, 1) + values.slice(0, 0, -1)).div_(2);
    found->second = {.values = values.to(device), .middles = middles.to(device)};
  }
  return found->second;
}

/// Calls `work(first element, number of elements, block)` for each block, on LibTorch's threads.
template <class Work>
void for_each_block(int64_t elements, const Work& work) {
  at::parallel_for(0, quantization_blocks(elements), kQuantizationGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kQuantizationBlock;
      work(first, std::min(kQuantizationBlock, elements - first), block);
    }
  });
}

}  // namespace

float quantize_block(const float* values, uint8_t* codes, int64_t count, QuantizedRange range, VectorSet vectors) {
  const float scale = greatest_of(values, count, vectors);
  if (!std::isfinite(scale)) {
    std::memset(codes, 0, static_cast<size_t>(count));
    return std::numeric_limits<float>::quiet_NaN();
  }
  const bool is_zero = std::fabs(scale) < kLeastScale;
  const float inverse = is_zero ? 0 : 1 / scale;
  if (range == QuantizedRange::kSigned)
    quantize_numbers<QuantizedRange::kSigned>(values, inverse, codes, count, vectors);
  else
    quantize_numbers<QuantizedRange::kNonNegative>(values, inverse, codes, count, vectors);
  return is_zero ? 0 : scale;
}

void dequantize_block(const uint8_t* codes, float scale, float* values, int64_t count, QuantizedRange range,
                      VectorSet vectors) {
  if (range == QuantizedRange::kSigned)
    dequantize_numbers<QuantizedRange::kSigned>(codes, scale, values, count, vectors);
  else
    dequantize_numbers<QuantizedRange::kNonNegative>(codes, scale, values, count, vectors);
}

void quantize(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, QuantizedRange range) {
  if (values.is_cpu()) {
    const float* const from = values.const_data_ptr<float>();
    auto* const to = codes.mutable_data_ptr<uint8_t>();
    auto* const scale = scales.mutable_data_ptr<float>();
    for_each_block(values.numel(), [&](int64_t first, int64_t count, int64_t block) {
      scale[block] = quantize_block(from + first, to + first, count, range);
    });
    return;
  }
  const int64_t missing = scales.numel() * kQuantizationBlock - values.numel();
  const at::Tensor blocks = at::constant_pad_nd(flat(values), {0, missing}).view({-1, kQuantizationBlock});
  const at::Tensor high = blocks.amax(1, /*keepdim=*/true);
  const at::Tensor low = blocks.amin(1, /*keepdim=*/true);
  at::Tensor scale = at::where(high > -low, high, low);
  scale = scale.masked_fill(scale.isfinite().logical_not(), std::numeric_limits<double>::quiet_NaN());
  scale = scale.masked_fill(scale.abs() < kLeastScale, 0);
  const at::Tensor relative = blocks * at::where(scale == 0, 0, scale.reciprocal());
  const at::Tensor found =
      at::bucketize(relative, table_on(values.device(), range).middles, /*out_int32=*/true, /*right=*/true);
  flat(codes).copy_(found.view({-1}).narrow(0, 0, values.numel()));
  scales.copy_(scale.view_as(scales));
}

at::Tensor dequantize(const at::Tensor& codes, const at::Tensor& scales, QuantizedRange range) {
  at::Tensor values = at::empty_like(codes, at::TensorOptions().dtype(at::kFloat));
  if (codes.is_cpu()) {
    const auto* const from = codes.const_data_ptr<uint8_t>();
    const auto* const scale = scales.const_data_ptr<float>();
    auto* const to = values.mutable_data_ptr<float>();
    for_each_block(codes.numel(), [&](int64_t first, int64_t count, int64_t block) {
      dequantize_block(from + first, scale[block], to + first, count, range);
    });
    return values;
  }
  const at::Tensor of_codes = table_on(codes.device(), range).values.index_select(0, flat(codes).to(at::kInt));
  flat(values).copy_(of_codes * scales.repeat_interleave(kQuantizationBlock).narrow(0, 0, codes.numel()));
  return values;
}

}  // namespace levin::optim
