#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace levin {

/// An island of full precision in a forward pass under `16-mixed` or `bf16-mixed`: in its scope operations run in the
/// type of their inputs. Earlier results are in 16 bits and must be converted:
///
///     const levin::FullPrecision island;
///     auto energy = logits.to(torch::kFloat).square().sum();
class FullPrecision {
 public:
  FullPrecision() = default;
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace levin
