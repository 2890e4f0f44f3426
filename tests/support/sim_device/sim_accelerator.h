#pragma once

#include <levin/core/accelerators/accelerator.h>

namespace levin::testing::sim {

/// The simulated devices as `accelerator: sim`.
class SimAccelerator final : public Accelerator {
 public:
  SimAccelerator();

  std::string hint_for_none() const override { return "accelerator: cpu, or sim::install() first"; }
  bool has_started() const override;
  std::string default_backend(bool) const override { return "sim_nccl"; }
  GraphSupport make_graph_recorder(const at::Device& device) const override;
};

/// Installs the devices and registers them, and SimNccl as `backend: sim_nccl`, with the trainer; later calls do
/// nothing.
void install_accelerator();

}  // namespace levin::testing::sim
