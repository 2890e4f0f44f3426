#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Work;
struct ReduceOp;
}  // namespace c10d

namespace levin {

/// Collectives over a backend's send and receive, in which every rank exchanges parts with every other one directly.
/// No other transfer under way may have the tag. A work is complete once it has been waited for.

/// Adds up what it gets in rank order. Gloo's own reduces everything on every rank, which takes four times as long.
/// `output` is one part of the flat `input`; sum, minimum and maximum.
c10::intrusive_ptr<c10d::Work> start_reduce_scatter(c10d::Backend& backend, at::Tensor output, const at::Tensor& input,
                                                    const c10d::ReduceOp& op, int tag);

/// Copies `input` to the rank's part of the flat `output` on every rank. Gloo's own takes half as long again.
c10::intrusive_ptr<c10d::Work> start_all_gather(c10d::Backend& backend, const at::Tensor& output,
                                                const at::Tensor& input, int tag);

}  // namespace levin
