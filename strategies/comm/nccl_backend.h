#pragma once

#include <levin/strategies/comm/process_group_options.h>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace levin {

/// Makes NCCL's backend for CUDA tensors. Throws ConfigError where this LibTorch, or this machine, has no CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ProcessGroupOptions& options);

/// Throws what make_nccl_backend would throw for want of CUDA.
void check_nccl_available();

}  // namespace levin
