#include <levin/core/nn/nf4.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(LEVIN_HAS_X86_VECTORS)
#include <immintrin.h>
#endif

namespace levin::nf4 {
namespace {

/// A scale below has no reciprocal.
constexpr float kLeastNf4Scale = 1e-38F;

/// By how many of the midpoints between values a number is above.
LEVIN_INLINE uint8_t nf4_code(float value) {
  uint8_t code = 0;
  for (size_t i = 0; i + 1 < kValues.size(); ++i) code += value > (kValues.at(i) + kValues.at(i + 1)) / 2 ? 1 : 0;
  return code;
}

#if defined(LEVIN_HAS_X86_VECTORS)
/// The values of eight codes.
__attribute__((always_inline, target("avx2"))) inline __m256 nf4_values(__m128i codes, __m256 low, __m256 high) {
  const __m256i index = _mm256_cvtepu8_epi32(codes);
  const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), is_high);
}

LEVIN_TARGET_AVX2 void dequantize_blocks_avx2(const uint8_t* codes, const float* scales, int64_t count, float* values) {
  const __m256 low = _mm256_loadu_ps(kValues.data());
  const __m256 high = _mm256_loadu_ps(kValues.data() + 8);
  const __m128i half = _mm_set1_epi8(15);
  for (int64_t block = 0; block < count; ++block) {
    const __m256 scale = _mm256_set1_ps(scales[block]);
    for (int64_t i = 0; i < kBlock; i += 32, codes += 16, values += 32) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
      const __m128i upper = _mm_and_si128(_mm_srli_epi16(bytes, 4), half);
      const __m128i lower = _mm_and_si128(bytes, half);
      const __m128i first = _mm_unpacklo_epi8(upper, lower);
      const __m128i second = _mm_unpackhi_epi8(upper, lower);
      _mm256_storeu_ps(values, _mm256_mul_ps(nf4_values(first, low, high), scale));
      _mm256_storeu_ps(values + 8, _mm256_mul_ps(nf4_values(_mm_srli_si128(first, 8), low, high), scale));
      _mm256_storeu_ps(values + 16, _mm256_mul_ps(nf4_values(second, low, high), scale));
      _mm256_storeu_ps(values + 24, _mm256_mul_ps(nf4_values(_mm_srli_si128(second, 8), low, high), scale));
    }
  }
}
#endif

}  // namespace

void quantize(const float* values, int64_t count, uint8_t* codes, float* scales) {
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(first + kBlock, count);
    float scale = 0;
    for (int64_t i = first; i < end; ++i) scale = std::max(scale, std::fabs(values[i]));
    const float inverse = 1 / std::max(scale, kLeastNf4Scale);
    for (int64_t i = first; i < end; i += 2) {
      const uint8_t second = i + 1 < end ? nf4_code(values[i + 1] * inverse) : nf4_code(0);
      codes[i / 2] = static_cast<uint8_t>(nf4_code(values[i] * inverse) << 4 | second);
    }
    scales[first / kBlock] = scale;
  }
}

void dequantize(const uint8_t* codes, const float* scales, int64_t count, float* values,
                [[maybe_unused]] VectorSet vectors) {
  int64_t i = 0;
#if defined(LEVIN_HAS_X86_VECTORS)
  if (vectors >= VectorSet::kAvx2) {
    const int64_t whole = count / kBlock;
    dequantize_blocks_avx2(codes, scales, whole, values);
    i = whole * kBlock;
  }
#endif
  for (; i < count; ++i) {
    const uint8_t code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    values[i] = kValues.at(code) * scales[i / kBlock];
  }
}

}  // namespace levin::nf4
