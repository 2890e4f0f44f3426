#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Work;
struct ReduceOp;
}  // namespace c10d

namespace levin {

/// Reduce-scatter over a backend's send and receive: every rank sends each other rank its part, and adds up what it
/// gets in rank order. Gloo's own reduces everything on every rank, which takes four times as long. `output` is one
/// part of the flat `input`; sum, minimum and maximum. No other transfer under way may have the tag. The work is
/// complete once it has been waited for.
c10::intrusive_ptr<c10d::Work> start_reduce_scatter(c10d::Backend& backend, at::Tensor output, const at::Tensor& input,
                                                    const c10d::ReduceOp& op, int tag);

}  // namespace levin
