#pragma once

#include <levin/strategies/comm/process_group_options.h>

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <string>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace levin {

/// The backend that options name; for `auto`, what Accelerator::default_backend says of the device.
/// Throws ConfigError for a name that is none and for a backend that cannot serve the device.
std::string resolve_backend(const ProcessGroupOptions& options);

/// Joins the ranks that have the same store; every rank calls it. Tensors on the CPU are served beside those of the
/// device. `nccl` needs a device of its own for each rank; `gloo` also lets ranks share one. See DeviceBackends.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                          const ProcessGroupOptions& options);

/// Makes the process group of some ranks, as make_process_group does.
using ProcessGroupFactory = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(
    const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options)>;

/// Sets what c10d reads from the environment when its first group is made. make_process_group does so too; a process
/// whose ranks are threads calls it before it starts them, because other threads may read the environment meanwhile.
void prepare_c10d_environment();

}  // namespace levin
