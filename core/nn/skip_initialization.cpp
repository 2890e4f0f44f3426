#include <levin/core/nn/skip_initialization.h>

#include <levin/core/base/permanent_library.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/normal_ops.h>
#include <ATen/ops/uniform_ops.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <utility>

namespace levin {
namespace {

thread_local bool skips_initialization = false;

/// As in kernel_scope.cpp: every call passes it, and operators on tensors have no kernels at it.
constexpr auto kDrawKey = c10::DispatchKey::BackendSelect;
constexpr c10::DispatchKeySet kBelowDraws(c10::DispatchKeySet::FULL_AFTER, kDrawKey);

at::Tensor& skip_or_draw_uniform(c10::DispatchKeySet keys, at::Tensor& self, double from, double to,
                                 std::optional<at::Generator> generator) {
  if (skips_initialization) return self;
  return at::_ops::uniform_::redispatch(keys & kBelowDraws, self, from, to, std::move(generator));
}

at::Tensor& skip_or_draw_normal(c10::DispatchKeySet keys, at::Tensor& self, double mean, double std,
                                std::optional<at::Generator> generator) {
  if (skips_initialization) return self;
  return at::_ops::normal_::redispatch(keys & kBelowDraws, self, mean, std, std::move(generator));
}

}  // namespace

SkipInitialization::SkipInitialization() {
  static std::once_flag once;
  std::call_once(once, [] {
    torch::Library& library = permanent_library(torch::Library::IMPL, "aten", kDrawKey);
    library.impl("uniform_", TORCH_FN(skip_or_draw_uniform));
    library.impl("normal_", TORCH_FN(skip_or_draw_normal));
  });
  before_ = std::exchange(skips_initialization, true);
}

SkipInitialization::~SkipInitialization() { skips_initialization = before_; }

}  // namespace levin
