#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace levin::nn::detail {

/// Whether attention of these tensors can be computed document by document: float64, float32 or bfloat16 on the CPU,
/// seen by no one who follows operators of LibTorch.
bool fits_document_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                             const at::Tensor& positions);

/// Causal attention inside of the documents that rows share: as scaled_dot_product_attention of queries [N, heads, T,
/// D], and keys and values [N, key heads, T, D], with self_mask of positions [N, T], but nothing is computed between
/// two documents. Padding gives its own value. An operator of Levin's own, `levin::document_attention`, with gradients.
///
/// `sliding_window`: the last so many keys, 0 for all. `scale`: of the scores, or else 1/√D.
at::Tensor document_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& positions, int64_t sliding_window, std::optional<double> scale);

}  // namespace levin::nn::detail
