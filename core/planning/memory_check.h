#pragma once

#include <levin/core/interfaces/callback.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/memory_planner.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace levin {

/// Measures the memory of a training step on the rank that needs most: on a GPU the bytes of LibTorch's allocator, on a
/// CPU those that an AccountingAllocator counts on the rank's thread. Make it with levin::make, since each rank makes
/// its own.
class MemoryCheck final : public Callback {
 public:
  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_end(Trainer& trainer, Module& module) override;

  struct Measured {
    PlanRow mesh;       ///< its sizes
    int64_t bytes = 0;  ///< peak of the rank that needs most, without the batch
  };
  /// Returns the result, after a fit, where rank 0 runs; nullopt when fewer than two steps were completed.
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
