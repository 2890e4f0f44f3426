/// What activation checkpointing gives and costs: training steps of a transformer of 12 blocks on one thread, each
/// block recomputed in backward, all of it or but for chosen operators or within a budget, in turn with plain steps on
/// the same model.
/// Prints the peak of memory that a step needs beyond parameters, gradients and optimizer state, the median time a
/// step, and the median of the ratios round by round.
///
///   build/bin/activation_checkpointing_benchmark [rounds] [dropout]
///   PYTHON benchmarks/peers/selective_checkpointing.py [rounds]       the same with PyTorch's selective checkpointing

#include <levin/core/devices/accounting_allocator.h>
#include "measure.h"
#include "run_in_turns.h"
#include "transformer.h"

#include <levin/levin.h>

#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

using levin::AccountingAllocator;
using levin::benchmarks::kBatch;
using levin::benchmarks::kLength;
using levin::benchmarks::kVocabulary;
using levin::benchmarks::kWidth;
using levin::benchmarks::median;
using levin::benchmarks::Transformer;

constexpr int64_t kBlocks = 12;

struct Step {
  double seconds;
  int64_t peak_bytes;
};

struct Variant {
  const char* name;
  levin::ActivationCheckpointingOptions options;
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

    const std::vector<Variant> variants = {
        {"plain", {}},
        {"checkpointed", {.units = {"Block"}}},
        {"keep attention", {.units = {"Block"}, .keep = {"scaled_dot_product_attention"}}},
        {"keep products", {.units = {"Block"}, .keep = {"linear"}}},
        {"keep both", {.units = {"Block"}, .keep = {"linear", "scaled_dot_product_attention"}}},
        {"budget 0.25", {.units = {"Block"}, .budget = {.share = 0.25}}},
        {"budget 0.4", {.units = {"Block"}, .budget = {.share = 0.4}}},
        {"budget 0.6", {.units = {"Block"}, .budget = {.share = 0.6}}},
        {"budget 0.8", {.units = {"Block"}, .budget = {.share = 0.8}}}};
    const auto run = [&](const Variant& variant) {
      const levin::ActivationCheckpointing checkpointing(*model, variant.options);
      // A budget chooses after two steps.
      for (int i = 0; variant.options.budget.is_set() && i < 2; ++i) model->loss(inputs, targets).backward();
      optimizer.zero_grad(/*set_to_none=*/false);
      Step step{};
      step.peak_bytes = AccountingAllocator::of_all_threads().peak_of([&] {
        const double started = levin::benchmarks::processor_seconds();
        model->loss(inputs, targets).backward();
        optimizer.step();
        step.seconds = levin::benchmarks::processor_seconds() - started;
      });
      return step;
    };

    for (const Variant& variant : variants) run(variant);
    std::vector<std::vector<double>> seconds(variants.size());
    std::vector<std::vector<double>> ratios(variants.size());
    std::vector<int64_t> peaks(variants.size());
    for (int64_t round = 0; round < rounds; ++round) {
      // Each round in another order.
      for (size_t i = 0; i < variants.size(); ++i) {
        const size_t at = (i + static_cast<size_t>(round)) % variants.size();
        const Step step = run(variants[at]);
        seconds[at].push_back(step.seconds);
        peaks[at] = step.peak_bytes;
      }
      for (size_t i = 0; i < variants.size(); ++i) ratios[i].push_back(seconds[i].back() / seconds[0].back());
    }
    std::printf("%d blocks of width %d, dropout %g, batch %d x %d tokens, %d rounds\n", static_cast<int>(kBlocks),
                static_cast<int>(kWidth), dropout, static_cast<int>(kBatch), static_cast<int>(kLength),
                static_cast<int>(rounds));
    for (size_t i = 0; i < variants.size(); ++i)
      std::printf("%-15s  peak activation memory %8.1f MB  ratio %.3f   step %8.1f ms  ratio %.3f\n", variants[i].name,
                  static_cast<double>(peaks[i]) / 1e6, static_cast<double>(peaks[i]) / static_cast<double>(peaks[0]),
                  1e3 * median(seconds[i]), median(ratios[i]));
  }
  return 0;
}
