#pragma once

#include <levin/core/base/vector_set.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Numbers in 8 bits by block-wise dynamic quantization (Dettmers et al., "8-bit Optimizers via Block-wise
/// Quantization", 2022, arXiv:2110.02861): each block has a scale, its greatest magnitude, and each number of it the
/// code of the nearest of 256 values between -1 and 1 (0 and 1) times the scale. The values are the paper's: seven
/// decades of ten, each with twice the values of the one below it, zero and 1. Codes count them in ascending order.
///
/// Other than in the paper, whose signed values end at 1 but at -0.993, a scale has the sign of the block's greatest
/// magnitude. So that is kept to the bit, and what was dequantized has the same codes and scale when it is quantized
/// again: it can be stored as plain numbers.
namespace levin::optim {

/// Elements that share a scale, as in the paper's library bitsandbytes.
constexpr int64_t kQuantizationBlock = 256;
/// Blocks that are worth a thread.
constexpr int64_t kQuantizationGrain = 128;

/// The numbers that a block may hold.
enum class QuantizedRange {
  kSigned,
  kNonNegative,
};

/// Writes the codes of at most kQuantizationBlock numbers and returns their scale. Below 2^-104 it is 0, as are all
/// numbers then; with a number that is infinite or none it is NaN, as are all numbers. The same bits on every
/// processor.
float quantize_block(const float* values, uint8_t* codes, int64_t count, QuantizedRange range,
                     VectorSet vectors = vector_set());
/// Writes the numbers that such codes stand for.
void dequantize_block(const uint8_t* codes, float scale, float* values, int64_t count, QuantizedRange range,
                      VectorSet vectors = vector_set());

/// The blocks of a tensor of so many elements; the last one may have fewer.
constexpr int64_t quantization_blocks(int64_t elements) {
  return (elements + kQuantizationBlock - 1) / kQuantizationBlock;
}
/// Quantizes float32 numbers without gaps in memory, whose order makes the blocks, into `codes`, of their layout, and
/// `scales`, one for each block, on any device.
void quantize(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, QuantizedRange range);
/// The float32 numbers that they stand for, of the codes' layout.
at::Tensor dequantize(const at::Tensor& codes, const at::Tensor& scales, QuantizedRange range);

}  // namespace levin::optim
