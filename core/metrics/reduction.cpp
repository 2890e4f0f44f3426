#include <levin/core/metrics/reduction.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/moments.h>

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace levin::metrics::detail {

void combine_states(Reduction reduction, at::Tensor& into, const at::Tensor& other) {
  switch (reduction) {
    case Reduction::kSum:
      into.add_(other);
      return;
    case Reduction::kMax:
      at::maximum_out(into, into, other);
      return;
    case Reduction::kMin:
      at::minimum_out(into, into, other);
      return;
    case Reduction::kMoments:
      return merge_moments(into, other);
    case Reduction::kConcatenate:
      break;
  }
  throw InternalError("a state that is not combined in place");
}

}  // namespace levin::metrics::detail
