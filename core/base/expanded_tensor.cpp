#include <levin/core/base/expanded_tensor.h>

namespace levin {
namespace {

bool repeats(const at::Tensor& tensor, int64_t dimension) {
  return tensor.stride(dimension) == 0 && tensor.size(dimension) > 1;
}

}  // namespace

at::Tensor without_repetitions(at::Tensor tensor) {
  if (tensor.layout() != at::kStrided) return tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (repeats(tensor, d)) tensor = tensor.narrow(d, 0, 1);
  return tensor;
}

void copy_elements(const at::Tensor& from, const at::Tensor& to) {
  at::Tensor elements = from;
  if (to.layout() == at::kStrided && from.layout() == at::kStrided)
    for (int64_t d = 0; d < to.dim(); ++d)
      if (repeats(to, d)) elements = elements.narrow(d, 0, 1);
  without_repetitions(to).copy_(elements);
}

}  // namespace levin
