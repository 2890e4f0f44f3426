#pragma once

#include "tests/support/sim_device/hardware.h"

#include <levin/core/accelerators/accelerator.h>

#include <atomic>

namespace levin::testing::sim {

/// The simulated devices as `accelerator: sim`.
class SimAccelerator final : public Accelerator {
 public:
  SimAccelerator();

  std::string hint_for_none() const override { return "accelerator: cpu, or sim::install() first"; }
  bool has_started() const override;
  std::string default_backend(bool) const override { return "sim_nccl"; }
  GraphSupport make_graph_recorder(const at::Device& device) const override;
  bool has_batch_norm_parts() const override { return has_batch_norm_parts_; }
  /// Without them batch normalisation over ranks is made of ordinary operators, as for a plug-in.
  void set_batch_norm_parts(bool has_them) { has_batch_norm_parts_ = has_them; }

 private:
  std::atomic<bool> has_batch_norm_parts_{true};
};

/// Installs the devices and registers them, and SimNccl as `backend: sim_nccl`, with the trainer; later calls do
/// nothing.
void install_accelerator();

}  // namespace levin::testing::sim
