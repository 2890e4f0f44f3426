#include <levin/core/optim/block_quantization.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace levin::optim {
namespace {

constexpr std::array kRanges = {QuantizedRange::kSigned, QuantizedRange::kNonNegative};

/// The 256 values by the definition of the paper: seven decades, each with twice the values of the one below it, which
/// lie in the middle of equal parts.
std::vector<double> values_of(QuantizedRange range) {
  std::vector<double> values = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = (range == QuantizedRange::kSigned ? 1 : 2) << decade;
    for (int part = 0; part < parts; ++part) {
      const double value = std::pow(10, decade - 6) * (0.1 + 0.9 * (part + 0.5) / parts);
      values.push_back(value);
      if (range == QuantizedRange::kSigned) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<float> dequantized(const std::vector<uint8_t>& codes, float scale, QuantizedRange range,
                               VectorSet vectors = vector_set()) {
  std::vector<float> values(codes.size());
  dequantize_block(codes.data(), scale, values.data(), static_cast<int64_t>(codes.size()), range, vectors);
  return values;
}

std::vector<uint8_t> all_codes() {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  return codes;
}

/// Magnitudes from the least float to 1, with all of those around the middle between two values.
std::vector<float> magnitudes(QuantizedRange range) {
  std::vector<float> found;
  for (uint32_t bits = 0; bits < 0x3f800000; bits += 0x1357) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    found.push_back(value);
  }
  const auto values = values_of(range);
  for (size_t i = 1; i < values.size(); ++i) {
    auto middle = static_cast<float>(std::abs(values[i - 1] + values[i]) / 2);
    for (int k = 0; k < 4; ++k) middle = std::nextafter(middle, 0.0F);
    for (int k = 0; k < 8; ++k) found.push_back(middle = std::nextafter(middle, 2.0F));
  }
  return found;
}

TEST(BlockQuantization, HasTheValuesOfThePaper) {
  for (const QuantizedRange range : kRanges) {
    const auto expected = values_of(range);
    ASSERT_EQ(expected.size(), 256u);
    const auto found = dequantized(all_codes(), 1, range);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-6 * std::abs(expected[i])) << "code " << i;
    EXPECT_EQ(found.back(), 1);
    EXPECT_EQ(std::count(found.begin(), found.end(), 0), 1);
  }
}

TEST(BlockQuantization, TakesTheNearestValue) {
  for (const QuantizedRange range : kRanges) {
    const auto values = values_of(range);
    for (const float sign : {1.0F, -1.0F}) {
      if (sign < 0 && range == QuantizedRange::kNonNegative) continue;
      for (const float magnitude : magnitudes(range)) {
        const std::array<float, 2> block = {sign * magnitude, 1};
        std::array<uint8_t, 2> codes{};
        ASSERT_EQ(quantize_block(block.data(), codes.data(), 2, range), 1);
        const double error = std::abs(values[codes[0]] - block[0]);
        const auto after = std::lower_bound(values.begin(), values.end(), block[0]);
        double least = std::abs(*after - block[0]);
        if (after != values.begin()) least = std::min(least, std::abs(*std::prev(after) - block[0]));
        ASSERT_LE(error, least + 2e-6 * magnitude) << block[0] << " became code " << int{codes[0]};
      }
    }
  }
}

TEST(BlockQuantization, WhatWasQuantizedIsTheSameWhenItIsQuantizedAgain) {
  for (const QuantizedRange range : kRanges) {
    // Every code beside the greatest, with scales of all sizes and both signs.
    for (int exponent = -104; exponent < 127; exponent += 3) {
      for (float scale : {std::ldexp(1.0F, exponent), std::ldexp(1.7F, exponent), -std::ldexp(1.3F, exponent)}) {
        if (scale < 0 && range == QuantizedRange::kNonNegative) continue;
        const auto codes = all_codes();
        const auto values = dequantized(codes, scale, range);
        std::vector<uint8_t> again(codes.size());
        ASSERT_EQ(quantize_block(values.data(), again.data(), 256, range), scale);
        ASSERT_EQ(again, codes) << scale;
      }
    }
  }
}

TEST(BlockQuantization, KeepsTheGreatestMagnitudeOfEitherSign) {
  const std::array<float, 3> block = {0.5F, -3.7F, 3.6999F};
  std::array<uint8_t, 3> codes{};
  std::array<float, 3> values{};
  const float scale = quantize_block(block.data(), codes.data(), 3, QuantizedRange::kSigned);
  dequantize_block(codes.data(), scale, values.data(), 3, QuantizedRange::kSigned);
  EXPECT_EQ(scale, -3.7F);
  EXPECT_EQ(values[1], -3.7F);
  EXPECT_NEAR(values[0], 0.5, 0.01);
  EXPECT_NEAR(values[2], 3.7, 0.03);
}

TEST(BlockQuantization, KnowsZeroAndWhatIsNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const QuantizedRange range : kRanges) {
    std::array<float, 40> block{};
    std::array<uint8_t, 40> codes{};
    EXPECT_EQ(quantize_block(block.data(), codes.data(), 40, range), 0);
    block[7] = 0x1p-110F;
    EXPECT_EQ(quantize_block(block.data(), codes.data(), 40, range), 0);
    dequantize_block(codes.data(), 0, block.data(), 40, range);
    for (const float value : block) EXPECT_EQ(value, 0);
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      block[33] = bad;
      const float scale = quantize_block(block.data(), codes.data(), 40, range);
      EXPECT_TRUE(std::isnan(scale));
      std::array<float, 40> values{};
      dequantize_block(codes.data(), scale, values.data(), 40, range);
      for (const float value : values) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(BlockQuantization, ComputesTheSameBitsWithEveryVectorSet) {
  for (const QuantizedRange range : kRanges) {
    auto numbers = magnitudes(range);
    if (range == QuantizedRange::kSigned)
      for (size_t i = 0; i < numbers.size(); i += 3) numbers[i] = -numbers[i];
    for (size_t begin = 0; begin + 256 <= numbers.size(); begin += 251) {
      for (const int64_t count : {256, 45, 3}) {
        std::array<std::vector<uint8_t>, 2> codes;
        std::array<std::vector<float>, 2> values;
        std::array<float, 2> scales{};
        for (size_t k = 0; k < 2; ++k) {
          const VectorSet vectors = k == 0 ? VectorSet::kPortable : vector_set();
          codes[k].resize(static_cast<size_t>(count));
          scales[k] = quantize_block(&numbers[begin], codes[k].data(), count, range, vectors);
          values[k] = dequantized(codes[k], scales[k], range, vectors);
        }
        ASSERT_EQ(scales[0], scales[1]);
        ASSERT_EQ(codes[0], codes[1]);
        ASSERT_EQ(values[0], values[1]);
      }
    }
  }
}

TEST(BlockQuantization, OfTensorsIsByBlocksInMemoryOrder) {
  const at::Tensor values =
      at::rand({5, 3, 7, 11}, at::detail::createCPUGenerator(3)).contiguous(at::MemoryFormat::ChannelsLast) - 0.5;
  const at::Tensor codes = at::empty_like(values, at::TensorOptions().dtype(at::kByte));
  const at::Tensor scales = at::empty({quantization_blocks(values.numel())});
  ASSERT_EQ(scales.numel(), 5);
  quantize(values, codes, scales, QuantizedRange::kSigned);
  const at::Tensor restored = dequantize(codes, scales, QuantizedRange::kSigned);
  EXPECT_EQ(restored.strides(), values.strides());
  EXPECT_LT((restored - values).abs().max().item<float>(), 0.5 * 0.008);
  const at::Tensor last = values.as_strided({values.numel()}, {1}).slice(0, 1024);
  EXPECT_EQ(scales[4].abs().item<float>(), last.abs().max().item<float>());
}

}  // namespace
}  // namespace levin::optim
