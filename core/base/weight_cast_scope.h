#pragma once

namespace levin {

/// Makes autocast convert a weight to 16 bits once in its lifetime, however often this thread's forward uses it: what
/// `torch.autocast`'s cache is for. LibTorch's cache is one for the process, and is emptied whenever any thread leaves
/// autocast. A weight that is used twice would then be converted once or twice by chance where ranks are threads, and
/// its gradient be summed in 16 or in 32 bits.
///
/// Unlike LibTorch's, a conversion is made anew when the weight has changed in place since, and those made without
/// gradients are not kept. LibTorch's own cache is disabled for the thread meanwhile. Scopes nest, and share what the
/// outermost keeps. The first one of the process registers a kernel with LibTorch's dispatcher; threads without a scope
/// pay nothing.
class WeightCastScope {
 public:
  /// With `enabled` false the scope does nothing.
  explicit WeightCastScope(bool enabled = true);
  ~WeightCastScope();
  WeightCastScope(const WeightCastScope&) = delete;
  WeightCastScope& operator=(const WeightCastScope&) = delete;

  /// Returns whether this thread is in an enabled scope.
  static bool is_active();
  /// Forgets this thread's conversions, since weights are about to change.
  static void forget();

 private:
  bool enabled_;
  bool key_before_ = false;
  bool cache_before_ = false;
};

}  // namespace levin
