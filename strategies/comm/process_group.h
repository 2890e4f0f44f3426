#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace levin {

class SharedMemoryTeam;

struct ProcessGroupOptions {
  std::string backend = "auto";  ///< auto, nccl, gloo or shared_memory
  at::Device device{at::kCPU};   ///< of this rank
  int64_t rank = 0;
  int64_t world_size = 1;
  bool one_host = true;           ///< whether all ranks run on this host
  std::string main_address = {};  ///< of the rendezvous: Gloo takes the network interface that leads there
  std::chrono::milliseconds timeout{30 * 60 * 1000};   ///< for making the group and for each operation
  std::shared_ptr<SharedMemoryTeam> thread_team = {};  ///< where ranks are threads of this process: what they share
};

/// The backend that options name: for `auto`, nccl on a CUDA device, shared_memory on CPUs of one host, else gloo.
/// Throws ConfigError for a name that is none and for a backend that cannot serve the device.
std::string resolve_backend(const ProcessGroupOptions& options);

/// Joins the ranks that have the same store; every rank calls it. Tensors on the CPU are served beside those of the
/// device. `nccl` needs a device of its own for each rank; `gloo` also lets ranks share one.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                          const ProcessGroupOptions& options);

/// Makes the process group of some ranks, as make_process_group does.
using ProcessGroupFactory = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(
    const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options)>;

/// Sets what c10d reads from the environment when its first group is made. make_process_group does so too; a process
/// whose ranks are threads calls it before it starts them, because other threads may read the environment meanwhile.
void prepare_c10d_environment();

}  // namespace levin
