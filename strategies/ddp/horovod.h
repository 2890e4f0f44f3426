#pragma once

#include <levin/strategies/ddp/ddp.h>

#include <cstdint>
#include <string>

namespace levin {

/// The options under the names that users of Horovod know; see docs/strategies.md for what they become.
struct HorovodOptions {
  int64_t fusion_threshold = 64 << 20;
  double cycle_time = 1;
  std::string compression = "none";
  std::string scale_lr = "linear";
  std::string backend = "auto";
  double timeout = 1800;
  bool broadcast_buffers = false;

  static void describe(Schema<HorovodOptions>& schema);
};

/// Ddp as users of Horovod expect it (Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
/// TensorFlow", 2018): started by mpirun, srun or horovodrun, learning rates scaled by the number of ranks, parameters
/// and the optimizers' state broadcast from rank 0 at the start. The communication is c10d's.
class Horovod : public Ddp {
 public:
  using Options = HorovodOptions;
  explicit Horovod(const Options& options = {});

  std::string name() const override { return "horovod"; }
  void broadcast_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) override;
};

}  // namespace levin
