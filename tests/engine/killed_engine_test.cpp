// A program with a loop of its own that is killed at any moment, again and again, and goes on from its last checkpoint:
// every step is that of a program that nobody disturbed, to the bit.

#include "../support/self_program.h"
#include "../support/tiny.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/descriptor.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/generator.h>
#include <levin/core/engine/engine.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>

namespace levin {
namespace {

constexpr int64_t kSteps = 24;
constexpr int64_t kBatchesOfStep = 2;

/// The batch that the program's world gives.
Batch numbered_batch(int64_t number, int64_t rank) {
  const at::Tensor x = at::arange(32, at::kFloat).reshape({8, 4}).add(0.37 * number + 1.7 * rank).sin();
  return {{"x", x}, {"y", x.sum(1, true)}, {"number", at::scalar_tensor(number, at::kLong)}};
}

/// Writes a line of each batch, "batch rank loss": before the ranks join in the step, so that no checkpoint of a step
/// is there without the lines of all its batches.
class WrittenModule : public testing::TinyModule {
 public:
  struct Options {
    std::string path = {};
  };
  explicit WrittenModule(const Options& options)
      : TinyModule(testing::TinyOptions{.dropout = 0.2}),
        file_(::open(options.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {}

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = TinyModule::training_step(batch, batch_idx);
    // In one piece, and there even if the process is killed next.
    const std::string line = fmt::format("{} {} {:.17g}\n", batch["number"].item<int64_t>(), trainer().global_rank(),
                                         output.loss().item<double>());
    if (::write(file_.number(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw Error("engine", "the record cannot be written");
    return output;
  }

 private:
  Descriptor file_;
};

/// Takes the steps that are left.
void take_steps(const std::string& folder, const std::string& record, const std::string& strategy, bool saves) {
  seed_everything(11);
  TrainerOptions options = testing::quiet(1);
  options.max_epochs.reset();
  options.max_steps = kSteps;
  options.accumulate_grad_batches = kBatchesOfStep;
  options.strategy = strategy;
  options.devices = strategy == "single_device" ? 1 : 2;
  options.default_root_dir = folder;
  options.enable_checkpointing = saves;
  if (saves)
    options.callbacks = {make<ModelCheckpoint>(
        {.save_last = true, .every_n_train_steps = 1, .dirpath = folder + "/" + record + "_checkpoints"})};
  const std::string path = folder + "/" + record;
  Engine engine(make<WrittenModule>({.path = path}), options);
  const std::string last = path + "_checkpoints/last";
  if (std::filesystem::exists(last)) engine.load(last);
  engine.run([&](Rank& rank) {
    while (!rank.stop_requested()) {
      const int64_t first = rank.step() * kBatchesOfStep;
      for (int64_t batch = first; batch < first + kBatchesOfStep; ++batch)
        rank.train_step(numbered_batch(batch, rank.global_rank()));
    }
  });
}

const testing::SelfProgram engine_steps("engine_steps", [] {
  try {
    take_steps(std::getenv("LEVIN_TEST_FOLDER"), "killed", std::getenv("LEVIN_TEST_STRATEGY"), /*saves=*/true);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
});

using Losses = std::map<std::pair<int64_t, int64_t>, std::string>;

/// Loss by batch and rank; a batch that was taken again must have the same.
Losses losses_of(const std::string& text) {
  Losses losses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int64_t batch = 0;
    int64_t rank = 0;
    std::string loss;
    words >> batch >> rank >> loss;
    const auto [found, is_new] = losses.try_emplace({batch, rank}, loss);
    EXPECT_EQ(found->second, loss) << "batch " << batch << " of rank " << rank << " was taken twice";
  }
  return losses;
}

class KilledEngine : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledEngine, GoesOnToTheSameSteps) {
  const std::string folder = testing::fresh_folder("killed_engine");
  take_steps(folder, "whole", GetParam(), /*saves=*/false);
  const Losses whole = losses_of(testing::read_text(folder + "/whole"));
  ASSERT_EQ(std::ssize(whole), kSteps * kBatchesOfStep * (std::string(GetParam()) == "single_device" ? 1 : 2));

  const auto record = [&] {
    const std::string path = folder + "/killed";
    return std::filesystem::exists(path) ? testing::read_text(path) : "";
  };
  const auto lines = [&] {
    const std::string text = record();
    return std::count(text.begin(), text.end(), '\n');
  };
  data::Generator moments(static_cast<uint64_t>(::getpid()), 0);
  for (int kill = 0; kill < 3; ++kill) {
    const int64_t until = lines() + 1 + static_cast<int64_t>(moments.below(6));
    SCOPED_TRACE(fmt::format("killed after {} lines", until));
    testing::RunningProgram program(engine_steps.words(), engine_steps.options({{"LEVIN_TEST_FOLDER", folder},
                                                                                {"LEVIN_TEST_STRATEGY", GetParam()}}));
    ASSERT_TRUE(program.wait_until([&] { return lines() >= until; })) << program.err();
    program.send(SIGKILL);
    const auto ended = program.wait();
    // On a busy machine it may have taken all steps before the signal came.
    EXPECT_TRUE(ended.signal == SIGKILL || ended.status == 0) << ended.err;
  }
  take_steps(folder, "killed", GetParam(), /*saves=*/false);
  EXPECT_EQ(losses_of(record()), whole);
}

INSTANTIATE_TEST_SUITE_P(Strategies, KilledEngine, ::testing::Values("single_device", "ddp_threads"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace levin
