#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

namespace levin::data {

/// Makes operations on this thread, during its lifetime, record no graph and skip the dispatcher's autograd layers,
/// which cost about as much as a small kernel. Unlike under c10::InferenceMode, the tensors made are ordinary ones:
/// they may be saved for backward or updated in place later. Batches are fetched in this scope, in workers and in the
/// calling thread alike.
class FetchScope {
 public:
  FetchScope() = default;
  FetchScope(const FetchScope&) = delete;
  FetchScope& operator=(const FetchScope&) = delete;

 private:
  at::NoGradGuard no_grad_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

}  // namespace levin::data
