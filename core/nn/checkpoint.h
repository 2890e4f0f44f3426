#pragma once

#include <levin/core/nn/checkpointed_call.h>

#include <torch/nn/module.h>

#include <type_traits>
#include <utility>

namespace levin {

/// Calls `callable(arguments...)`, a module's holder or a function, and recomputes it in backward: see
/// run_checkpointed. A function keeps what it captured until backward; of a module also the buffers are put back after
/// the recompute (so that BatchNorm counts a batch once), so hand over the holder rather than a function that calls it.
template <class Callable, class... Arguments>
auto checkpoint(Callable callable, Arguments&&... arguments) {
  static_assert(!std::is_base_of_v<torch::nn::Module, Callable>, "hand over the holder of the module");
  using Result = std::invoke_result_t<Callable&, std::decay_t<Arguments>...>;
  torch::nn::Module* module = nullptr;
  if constexpr (requires { static_cast<torch::nn::Module*>(callable.ptr().get()); }) module = callable.ptr().get();
  detail::TypedUnitCall<Callable, Result, std::decay_t<Arguments>...> call(
      /*unit=*/nullptr, /*hooks=*/nullptr, module, std::move(callable),
      std::decay_t<Arguments>(std::forward<Arguments>(arguments))...);
  run_checkpointed(call, "levin::checkpoint", /*offload=*/false);
  return call.take_result();
}

}  // namespace levin
