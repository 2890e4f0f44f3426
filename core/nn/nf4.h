#pragma once

#include <levin/core/base/vector_set.h>

#include <array>
#include <cstdint>

/// Numbers in 4 bits: NF4 of Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, arXiv:2305.14314.
/// Each block has a scale, its greatest magnitude, and each number of it the code of the nearest of 16 values,
/// quantiles of a normal distribution, times the scale. Two codes are in a byte, the first in its upper half.
namespace levin::nf4 {

/// Numbers that share a scale.
constexpr int64_t kBlock = 64;

/// The values of the codes, from the paper's appendix.
constexpr std::array<float, 16> kValues = {-1.0F,
                                           -0.6961928009986877F,
                                           -0.5250730514526367F,
                                           -0.39491748809814453F,
                                           -0.28444138169288635F,
                                           -0.18477343022823334F,
                                           -0.09105003625154495F,
                                           0.0F,
                                           0.07958029955625534F,
                                           0.16093020141124725F,
                                           0.24611230194568634F,
                                           0.33791524171829224F,
                                           0.44070982933044434F,
                                           0.5626170039176941F,
                                           0.7229568362236023F,
                                           1.0F};

/// Returns the number of blocks of so many numbers; the last one may have fewer.
constexpr int64_t blocks(int64_t count) { return (count + kBlock - 1) / kBlock; }

/// Writes the codes and the scales of numbers that are finite.
void quantize(const float* values, int64_t count, uint8_t* codes, float* scales);
/// Writes the numbers that codes and scales stand for. The same bits on every processor.
void dequantize(const uint8_t* codes, const float* scales, int64_t count, float* values,
                VectorSet vectors = vector_set());

}  // namespace levin::nf4
