#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace levin {

class SharedMemoryTeam;

struct ProcessGroupOptions {
  std::string backend = "auto";  ///< see DeviceBackends::option_values
  at::Device device{at::kCPU};   ///< of this rank
  int64_t rank = 0;
  int64_t world_size = 1;
  bool one_host = true;           ///< whether all ranks run on this host
  std::string main_address = {};  ///< host of the rendezvous: Gloo takes the network interface that leads there
  std::chrono::milliseconds timeout{30 * 60 * 1000};   ///< for making the group and for each operation
  std::shared_ptr<SharedMemoryTeam> thread_team = {};  ///< where ranks are threads of this process: what they share
};

}  // namespace levin
