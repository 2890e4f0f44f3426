#pragma once

#include <levin/core/base/vector_set.h>

#include <c10/util/BFloat16.h>

#include <cstdint>

/// Kernels for a block of a language model in training, on the calling thread. Elements are float or c10::BFloat16;
/// sums and factors are float32, and the same bits whichever vectors the processor has.
namespace levin::nn::detail {

/// Divides each of `rows` contiguous rows by its root mean square and multiplies it by `weight` [size]; nullptr: by 1.
/// `factors` [rows] are what the rows were multiplied by before.
template <class Element>
void normalize_rows_forward(const Element* x, const float* weight, double eps, Element* y, float* factors, int64_t rows,
                            int64_t size, VectorSet vectors = vector_set());

/// Its gradients: of `x`, unless `x_slope` is nullptr, and of the weight, added to `weight_slope` unless that is.
template <class Element>
void normalize_rows_backward(const Element* y_slope, const Element* x, const float* weight, const float* factors,
                             Element* x_slope, float* weight_slope, int64_t rows, int64_t size,
                             VectorSet vectors = vector_set());

/// output = gate · sigmoid(gate) · up.
template <class Element>
void silu_multiply_forward(const Element* gate, const Element* up, Element* output, int64_t count,
                           VectorSet vectors = vector_set());

template <class Element>
void silu_multiply_backward(const Element* slope, const Element* gate, const Element* up, Element* gate_slope,
                            Element* up_slope, int64_t count, VectorSet vectors = vector_set());

/// Heads of one token, `stride` apart, of which the first 2 · `half` features are turned.
template <class Pointer>
struct Heads {
  Pointer first;
  int64_t stride;
};

/// Rotates: (a, b) to (a cos − b sin, b cos + a sin), or back. What follows the features that are turned is copied.
template <class Element>
void rotate_token(Heads<const Element*> x, const Element* cosines, const Element* sines, Heads<Element*> y,
                  int64_t heads, int64_t half, int64_t head_dim, bool back, VectorSet vectors = vector_set());

}  // namespace levin::nn::detail
