#pragma once

#include <levin/core/base/vector_set.h>

#include <cstdint>

/// Kernels for the few tokens of a step of generation, float32 and on the calling thread: what they compute costs less
/// than calls of operators.
namespace levin::nn::detail {

/// As rms_norm: divides each of `rows` contiguous rows by its root mean square and multiplies it by weight + `offset`.
/// `weight` nullptr: by 1. `output` may be `input`.
void normalize_rows(const float* input, const float* weight, float offset, double eps, float* output, int64_t rows,
                    int64_t size, VectorSet vectors = vector_set());

/// As RotaryEmbedding, in place: rotates the first 2 · `half` features of each head of x, contiguous
/// [rows, heads, head_dim]. Cosines and sines have `half` numbers for each row, `table_stride` apart.
void rotate_heads(float* x, const float* cosines, const float* sines, int64_t rows, int64_t table_stride, int64_t heads,
                  int64_t head_dim, int64_t half);

/// Queries of one token of each row, and the keys and values that they attend to.
struct CachedAttention {
  const float* queries;  ///< [rows, heads, head_dim], contiguous
  const float* keys;     ///< [rows, key_value_heads, places, head_dim]; places of a head are contiguous
  const float* values;   ///< likewise
  int64_t row_stride;    ///< of keys and values
  int64_t head_stride;   ///< of keys and values
  const bool* mask;      ///< which places count, [rows, places], contiguous; nullptr: all
  float* output;         ///< as queries
  int64_t heads;
  int64_t key_value_heads;
  int64_t places;
  int64_t head_dim;
  float scale;
};

/// As scaled_dot_product_attention, of one row and one head of keys and values: `index` is row · key_value_heads +
/// head. `scores`: room for heads / key_value_heads · places numbers.
void attend_to_cache(const CachedAttention& attention, int64_t index, float* scores, VectorSet vectors = vector_set());

/// output = gate · sigmoid(gate) · up; `output` may be `gate`.
void multiply_by_silu(const float* gate, const float* up, float* output, int64_t count,
                      VectorSet vectors = vector_set());

}  // namespace levin::nn::detail
