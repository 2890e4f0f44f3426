#include <levin/core/base/weight_cast_scope.h>

#include <levin/core/base/permanent_library.h>
#include <levin/core/base/weight_conversion.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin {
namespace {

// LibTorch keeps this dispatch key, too, for modes of a thread, and uses it in its own tests only. The other is
// ThreadGeneratorScope's. It comes before autograd, so that the copies that are kept have a gradient.
constexpr auto kCastKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr c10::DispatchKeySet kBelowCastKey(c10::DispatchKeySet::FULL_AFTER, kCastKey);

struct WeightCast {
  at::Tensor weight;  ///< kept, so that no other gets its address
  int64_t version;
  at::Tensor cast;
};

struct ThreadCasts {
  int64_t scopes = 0;
  bool is_converting = false;
  std::vector<const c10::TensorImpl*> activations = {};  ///< kept by ActivationLeavesScope
  std::unordered_map<c10::TensorImpl*, WeightCast> of_weight;
};

thread_local ThreadCasts casts;

class ConvertingScope {
 public:
  ConvertingScope() : outer_(std::exchange(casts.is_converting, true)) {}
  ~ConvertingScope() { casts.is_converting = outer_; }
  ConvertingScope(const ConvertingScope&) = delete;
  ConvertingScope& operator=(const ConvertingScope&) = delete;

 private:
  const bool outer_;
};

/// Autocast asks for a type and nothing else, with its own key excluded. That tells it from code that converts by hand,
/// but for such code in a FullPrecision scope, which gets the copy that is kept.
bool is_autocast_of_weight(const at::Tensor& self, std::optional<at::ScalarType> type) {
  return casts.scopes > 0 && type && (*type == at::kBFloat16 || *type == at::kHalf) &&
         self.scalar_type() == at::kFloat && self.requires_grad() && self.is_leaf() && !self.is_view() &&
         at::GradMode::is_enabled() &&
         std::ranges::find(casts.activations, self.unsafeGetTensorImpl()) == casts.activations.end() &&
         c10::impl::tls_is_dispatch_key_excluded(
             at::autocast::get_autocast_dispatch_key_from_device_type(self.device().type()));
}

at::Tensor to_copy(c10::DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> type,
                   std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory,
                   bool non_blocking, std::optional<at::MemoryFormat> memory_format) {
  const auto convert = [&] {
    return at::_ops::_to_copy::redispatch(keys & kBelowCastKey, self, type, layout, device, pin_memory, non_blocking,
                                          memory_format);
  };
  if (layout || device || pin_memory || memory_format || !is_autocast_of_weight(self, type)) return convert();
  const auto found = casts.of_weight.find(self.unsafeGetTensorImpl());
  if (found != casts.of_weight.end() && found->second.version == self._version() &&
      found->second.cast.scalar_type() == *type)
    return found->second.cast;
  at::Tensor cast = [&] {
    const ConvertingScope converting;
    return convert();
  }();
  casts.of_weight.insert_or_assign(self.unsafeGetTensorImpl(), WeightCast{self, self._version(), cast});
  return cast;
}

void ensure_cast_kernel() {
  static std::once_flag once;
  std::call_once(once, [] {
    permanent_library(torch::Library::IMPL, "_", kCastKey).fallback(torch::CppFunction::makeFallthrough());
    permanent_library(torch::Library::IMPL, "aten", kCastKey).impl("_to_copy", &to_copy);
  });
}

}  // namespace

WeightCastScope::WeightCastScope(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  ensure_cast_kernel();
  key_before_ = c10::impl::tls_is_dispatch_key_included(kCastKey);
  c10::impl::tls_set_dispatch_key_included(kCastKey, true);
  cache_before_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_cache_enabled(false);
  ++casts.scopes;
}

WeightCastScope::~WeightCastScope() {
  if (!enabled_) return;
  if (--casts.scopes == 0) casts.of_weight.clear();
  at::autocast::set_autocast_cache_enabled(cache_before_);
  c10::impl::tls_set_dispatch_key_included(kCastKey, key_before_);
}

bool WeightCastScope::is_active() { return casts.scopes > 0; }

void WeightCastScope::forget() { casts.of_weight.clear(); }

// ---- Conversions, for those that watch operators

bool is_converting_weight() { return casts.is_converting; }

ActivationLeavesScope::ActivationLeavesScope(std::vector<at::Tensor> activations)
    : activations_(std::move(activations)) {
  for (const at::Tensor& activation : activations_) casts.activations.push_back(activation.unsafeGetTensorImpl());
}

ActivationLeavesScope::~ActivationLeavesScope() {
  casts.activations.resize(casts.activations.size() - activations_.size());
}

}  // namespace levin
