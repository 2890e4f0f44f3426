/// What activation checkpointing gives and costs: training steps of a transformer of 12 blocks on one thread, each
/// block recomputed in backward, in turn with plain steps on the same model. Prints the peak of memory that a step
/// needs beyond parameters, gradients and optimizer state, the median time a step, and the median of the ratios round
/// by round.
///
///   build/bin/activation_checkpointing_benchmark [rounds] [dropout]

#include <levin/core/devices/accounting_allocator.h>
#include "measure.h"
#include "transformer.h"

#include <levin/levin.h>

#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

using levin::AccountingAllocator;
using levin::benchmarks::Clock;
using levin::benchmarks::kBatch;
using levin::benchmarks::kLength;
using levin::benchmarks::kVocabulary;
using levin::benchmarks::kWidth;
using levin::benchmarks::median;
using levin::benchmarks::seconds_since;
using levin::benchmarks::Transformer;

constexpr int64_t kBlocks = 12;

struct Step {
  double seconds;
  int64_t peak_bytes;
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 15;
  const double dropout = argc > 2 ? std::stod(argv[2]) : 0.1;
  torch::set_num_threads(1);
  AccountingAllocator::install();
  {
    torch::manual_seed(1);
    Transformer model(kBlocks, dropout);
    levin::optim::SGD optimizer(model->parameters(), {.lr = 1e-3, .momentum = 0.9});
    const torch::Tensor tokens = torch::randint(kVocabulary, {kBatch, kLength + 1});
    const torch::Tensor inputs = tokens.narrow(1, 0, kLength).contiguous();
    const torch::Tensor targets = tokens.narrow(1, 1, kLength).contiguous();

    const auto run = [&](bool checkpointed) {
      std::optional<levin::ActivationCheckpointing> checkpointing;
      if (checkpointed) checkpointing.emplace(*model, levin::ActivationCheckpointingOptions{.units = {"Block"}});
      optimizer.zero_grad(/*set_to_none=*/false);
      Step step{};
      step.peak_bytes = AccountingAllocator::of_all_threads().peak_of([&] {
        const auto started = Clock::now();
        model->loss(inputs, targets).backward();
        optimizer.step();
        step.seconds = seconds_since(started);
      });
      return step;
    };

    for (const bool checkpointed : {false, true}) run(checkpointed);
    std::vector<double> plain_seconds;
    std::vector<double> checkpointed_seconds;
    std::vector<double> ratios;
    Step plain{};
    Step checkpointed{};
    for (int64_t round = 0; round < rounds; ++round) {
      const bool plain_first = round % 2 == 0;
      if (plain_first) plain = run(false);
      checkpointed = run(true);
      if (!plain_first) plain = run(false);
      plain_seconds.push_back(plain.seconds);
      checkpointed_seconds.push_back(checkpointed.seconds);
      ratios.push_back(checkpointed.seconds / plain.seconds);
    }
    const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
    std::printf("%d blocks of width %d, dropout %g, batch %d x %d tokens, %d rounds\n", static_cast<int>(kBlocks),
                static_cast<int>(kWidth), dropout, static_cast<int>(kBatch), static_cast<int>(kLength),
                static_cast<int>(rounds));
    std::printf("peak activation memory  plain %8.1f MB  checkpointed %8.1f MB  ratio %.3f\n",
                megabytes(plain.peak_bytes), megabytes(checkpointed.peak_bytes),
                static_cast<double>(checkpointed.peak_bytes) / static_cast<double>(plain.peak_bytes));
    std::printf("step                    plain %8.1f ms  checkpointed %8.1f ms  ratio %.3f\n",
                1e3 * median(plain_seconds), 1e3 * median(checkpointed_seconds), median(ratios));
  }
  return 0;
}
