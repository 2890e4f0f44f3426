// How often the loop asks for memory. An executable of its own, because it replaces the global operator new.

#include "../support/tiny.h"

#include <levin/core/base/seed.h>
#include <levin/loggers/csv_logger.h>
#include <levin/loggers/tensorboard_logger.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <vector>

namespace {

/// Of this thread: the one that trains is counted, not the one that looks once a second whether it hangs.
thread_local int64_t allocations = 0;

void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  // aligned_alloc wants a multiple of the alignment.
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(std::max<std::size_t>(size, 1))
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The array and nothrow forms of the standard library call these.
void* operator new(std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace levin {
namespace {

constexpr int64_t kBatches = 100;
constexpr int64_t kBatchSize = 4;
// Steps that are counted: those before them see everything for the first time, and a logging boundary follows.
constexpr int64_t kFirst = 60;
constexpr int64_t kLast = 95;

/// The tiny module, taking down how many allocations there were when each step began.
class CountingModule : public testing::TinyModule {
 public:
  explicit CountingModule(bool logs) : TinyModule(testing::TinyOptions{}), logs_(logs), counts_(kBatches, 0) {}

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    counts_[static_cast<size_t>(batch_idx)] = allocations;
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    if (logs_) log("train_loss", loss, {.on_step = true, .on_epoch = true, .prog_bar = true});
    return loss;
  }

  /// Of all counted steps together.
  int64_t counted() const { return counts_[kLast] - counts_[kFirst]; }

 private:
  const bool logs_;
  std::vector<int64_t> counts_;
};

DataLoader loader() { return testing::tiny_loader(kBatches * kBatchSize, kBatchSize); }

/// The allocations of the same steps in a loop that people write.
int64_t by_hand() {
  seed_everything(1);
  CountingModule module(/*logs=*/false);
  module.train();
  optim::AdamW adamw(module.parameters(), optim::AdamWOptions{.lr = 0.05});
  auto batches = loader();
  auto pass = batches.pass({.seed = 1});
  int64_t batch_idx = 0;
  while (auto batch = pass.next()) {
    auto loss = module.training_step(*batch, batch_idx++);
    adamw.zero_grad();
    loss.loss().backward();
    adamw.step();
  }
  return module.counted();
}

int64_t by_trainer(const TrainerOptions& options, bool logs) {
  seed_everything(1);
  auto module = std::make_shared<CountingModule>(logs);
  Trainer trainer(options);
  trainer.fit(module, loader());
  return module->counted();
}

constexpr int64_t kSteps = kLast - kFirst;

TEST(Allocation, ABareLoopAllocatesNothing) {
  by_hand();  // what LibTorch allocates once
  EXPECT_EQ(by_trainer(testing::quiet(1), /*logs=*/false), by_hand()) << "in " << kSteps << " steps";
}

TEST(Allocation, LoggingEveryStepAllocatesNothingBetweenBoundaries) {
  const std::string folder = testing::fresh_folder("allocation");
  TrainerOptions options = testing::quiet(1);
  options.default_root_dir = folder;
  options.logger = {make<CsvLogger>({}), make<TensorBoardLogger>({})};
  options.log_every_n_steps = 50;
  by_hand();
  EXPECT_EQ(by_trainer(options, /*logs=*/true), by_hand()) << "in " << kSteps << " steps";
  std::filesystem::remove_all(folder);
}

/// Pages in memory, in KiB.
int64_t resident_kib() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

TEST(Allocation, MemoryDoesNotGrowOverTenThousandSteps) {
#ifdef LEVIN_SANITIZED
  GTEST_SKIP() << "built with a sanitizer, which keeps freed memory; builds without one have this test";
#endif
  constexpr int64_t kWarmUp = 2'000;
  constexpr int64_t kAll = 12'000;
  const std::string folder = testing::fresh_folder("growth");
  class Watching : public testing::TinyModule {
   public:
    Watching() : TinyModule(testing::TinyOptions{}) {}
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
      if (trainer().global_step() == kWarmUp) before = resident_kib();
      if (trainer().global_step() == kAll) after = resident_kib();
    }
    int64_t before = 0;
    int64_t after = 0;
  };
  TrainerOptions options = testing::quiet(-1);
  options.max_steps = kAll;
  options.default_root_dir = folder;
  options.logger = {make<CsvLogger>({}), make<TensorBoardLogger>({})};
  options.log_every_n_steps = 10;
  auto module = std::make_shared<Watching>();
  Trainer trainer(options);
  // 100 steps an epoch, with a validation after each.
  trainer.fit(module, loader(), testing::tiny_loader(8, 4, false));
  ASSERT_GT(module->before, 0);
  EXPECT_LE(module->after - module->before, 1024) << "KiB, from " << module->before << " KiB";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace levin
