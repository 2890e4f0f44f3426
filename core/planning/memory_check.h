#pragma once

#include <levin/core/interfaces/callback.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/memory_planner.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace levin {

/// Measures the memory that a step takes on the rank that needs most: of a GPU what LibTorch's allocator gives out,
/// of a CPU what an AccountingAllocator counts on the rank's thread. Each rank makes its own by its init options
/// (levin::make).
class MemoryCheck final : public Callback {
 public:
  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_end(Trainer& trainer, Module& module) override;

  struct Measured {
    int64_t ranks = 1;
    int64_t bytes = 0;  ///< the most of a rank, without the batch
  };
  /// On rank 0 after a fit; nullopt where no step was whole.
  const std::optional<Measured>& measured() const { return measured_; }

 private:
  int64_t before_ = 0;  ///< in use before the strategy took over the module, the module itself left out
  int64_t most_ = 0;
  std::optional<Measured> measured_;
};

/// Returns the options of the training that is configured, for so many steps, without validation, files and callbacks
/// but `check`.
TrainerOptions checking_options(TrainerOptions configured, int64_t steps, std::shared_ptr<MemoryCheck> check);

/// Returns "measured: …", beside what is predicted for `strategy`, which trained, and that number of ranks, where a
/// plan has it.
std::string check_report(const MemoryCheck& check, const TrainerOptions& configured, const Strategy& strategy,
                         const TrainingNeeds& needs);

}  // namespace levin
