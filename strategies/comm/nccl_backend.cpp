#include <levin/strategies/comm/nccl_backend.h>

#include <levin/build_info.h>
#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/strategies/comm/c10d_error.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#if LEVIN_HAS_CUDA && __has_include(<nccl.h>)

// The header of NCCL's process group is empty without this. Only this file includes it.
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace levin {

void check_nccl_available() {
  if (c10::cuda::device_count() == 0)
    throw ConfigError("backend 'nccl' needs a CUDA device and this process sees none; hint: backend 'gloo', or 'auto'");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ProcessGroupOptions& options) {
  check_nccl_available();
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  try {
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(options.rank),
                                                       static_cast<int>(options.world_size), std::move(nccl));
  } catch (const std::exception& error) {
    throw CommunicationError(
        "comm", fmt::format("rank {} of {} could not start NCCL on {}: {}; hint: NCCL_DEBUG=INFO prints more",
                            options.rank, options.world_size, options.device.str(), c10d_message(error)));
  }
}

}  // namespace levin

#else

namespace levin {

void check_nccl_available() {
  throw ConfigError(
      "backend 'nccl' needs a LibTorch with CUDA and NCCL's headers; this Levin was built without; hint: "
      "backend 'gloo', or 'auto'");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&,
                                                    const ProcessGroupOptions&) {
  check_nccl_available();
  return nullptr;
}

}  // namespace levin

#endif
