#include <levin/core/nn/kernel_scope.h>

#include <levin/core/base/permanent_library.h>
#include <levin/core/nn/max_pool_2x2.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace levin {
namespace {

thread_local bool takes_own_kernels = false;

/// A key that every call passes below autograd and the like, and at which operators on tensors have no kernels.
constexpr auto kKey = c10::DispatchKey::BackendSelect;
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

/// Elements of the output that are worth a thread.
constexpr int64_t kGrain = 1 << 13;

/// The arguments of aten::max_pool2d_with_indices.
struct MaxPool {
  at::IntArrayRef kernel_size;
  at::IntArrayRef stride;
  at::IntArrayRef padding;
  at::IntArrayRef dilation;
  bool ceil_mode;
};

bool all_are(at::IntArrayRef values, int64_t value) {
  return std::all_of(values.begin(), values.end(), [value](int64_t other) { return other == value; });
}

/// What is left to LibTorch includes all that it refuses.
bool fits_2x2(const at::Tensor& input, const MaxPool& pool) {
  if (!takes_own_kernels || pool.kernel_size.empty() || pool.kernel_size.size() > 2 || !all_are(pool.kernel_size, 2))
    return false;
  if (pool.stride.size() > 2 || !all_are(pool.stride, 2) || pool.padding.size() > 2 || !all_are(pool.padding, 0) ||
      pool.dilation.size() > 2 || !all_are(pool.dilation, 1))
    return false;
  if (pool.padding.empty() || pool.dilation.empty()) return false;
  if (!input.device().is_cpu() || input.layout() != at::kStrided || input.scalar_type() != at::kFloat ||
      (input.dim() != 3 && input.dim() != 4) || input.numel() == 0 ||
      input.suggest_memory_format() != at::MemoryFormat::Contiguous || !input.is_contiguous())
    return false;
  const int64_t height = input.size(-2);
  const int64_t width = input.size(-1);
  const bool has_odd_edge = height % 2 != 0 || width % 2 != 0;
  return height >= 2 && width >= 2 && !(pool.ceil_mode && has_odd_edge) &&
         height * width <= std::numeric_limits<int32_t>::max();
}

std::vector<int64_t> pooled_sizes(const at::Tensor& input) {
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[sizes.size() - 2] /= 2;
  sizes.back() /= 2;
  return sizes;
}

void pool_2x2(const at::Tensor& input, const at::Tensor& output, const at::Tensor& indices) {
  const int64_t height = input.size(-2);
  const int64_t width = input.size(-1);
  const int64_t of_plane = (height / 2) * (width / 2);
  const float* const from = input.const_data_ptr<float>();
  float* const to = output.mutable_data_ptr<float>();
  int64_t* const at = indices.mutable_data_ptr<int64_t>();
  at::parallel_for(0, input.numel() / (height * width), std::max<int64_t>(kGrain / of_plane, 1),
                   [&](int64_t begin, int64_t end) {
                     max_pool_2x2(from + begin * height * width, to + begin * of_plane, at + begin * of_plane,
                                  end - begin, height, width);
                   });
}

std::tuple<at::Tensor, at::Tensor> max_pool2d(c10::DispatchKeySet keys, const at::Tensor& self,
                                              at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                              at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  if (!fits_2x2(self, {kernel_size, stride, padding, dilation, ceil_mode}))
    return at::_ops::max_pool2d_with_indices::redispatch(keys & kBelow, self, kernel_size, stride, padding, dilation,
                                                         ceil_mode);
  const auto sizes = pooled_sizes(self);
  at::Tensor output = at::empty(sizes, self.options());
  at::Tensor indices = at::empty(sizes, self.options().dtype(at::kLong));
  pool_2x2(self, output, indices);
  return {std::move(output), std::move(indices)};
}

/// Of recorded steps, which give outputs that fit.
std::tuple<at::Tensor&, at::Tensor&> max_pool2d_out(c10::DispatchKeySet keys, const at::Tensor& self,
                                                    at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                                    at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                                                    at::Tensor& out, at::Tensor& indices) {
  const auto is_place = [&](const at::Tensor& tensor, at::ScalarType type) {
    return tensor.sizes() == pooled_sizes(self) && tensor.scalar_type() == type && tensor.is_contiguous();
  };
  if (!fits_2x2(self, {kernel_size, stride, padding, dilation, ceil_mode}) || !is_place(out, at::kFloat) ||
      !is_place(indices, at::kLong))
    return at::_ops::max_pool2d_with_indices_out::redispatch(keys & kBelow, self, kernel_size, stride, padding,
                                                             dilation, ceil_mode, out, indices);
  pool_2x2(self, out, indices);
  return {out, indices};
}

void install_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    torch::Library& library = permanent_library(torch::Library::IMPL, "aten", kKey);
    library.impl("max_pool2d_with_indices", TORCH_FN(max_pool2d));
    library.impl("max_pool2d_with_indices.out", TORCH_FN(max_pool2d_out));
  });
}

}  // namespace

KernelScope::KernelScope(bool enabled) {
  if (enabled) install_kernels();
  before_ = std::exchange(takes_own_kernels, enabled);
}

KernelScope::~KernelScope() { takes_own_kernels = before_; }

}  // namespace levin
