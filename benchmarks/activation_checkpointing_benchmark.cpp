/// What activation checkpointing gives and costs: training steps of a transformer of 12 blocks on one thread, each
/// block recomputed in backward, in turn with plain steps on the same model. Prints the peak of memory that a step
/// needs beyond parameters, gradients and optimizer state, the median time a step, and the median of the ratios round
/// by round.
///
///   build/bin/activation_checkpointing_benchmark [rounds] [dropout]

#include "../tests/support/accounting_allocator.h"
#include "measure.h"

#include <levin/levin.h>

#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::median;
using levin::benchmarks::seconds_since;
using levin::testing::AccountingAllocator;

constexpr int64_t kBlocks = 12;
constexpr int64_t kWidth = 256;
constexpr int64_t kHeads = 4;
constexpr int64_t kBatch = 8;
constexpr int64_t kLength = 128;
constexpr int64_t kVocabulary = 128;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout_probability) {
    attention_norm = register_module("attention_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    projections = register_module("projections", torch::nn::Linear(kWidth, 3 * kWidth));
    output = register_module("output", torch::nn::Linear(kWidth, kWidth));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    widen = register_module("widen", torch::nn::Linear(kWidth, 4 * kWidth));
    narrow = register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth));
    dropout = register_module("dropout", torch::nn::Dropout(dropout_probability));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + dropout(attention(attention_norm(x)));
    return y + dropout(narrow(torch::gelu(widen(norm(y)))));
  }
  torch::Tensor attention(const torch::Tensor& x) {
    const auto parts = projections(x).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const torch::Tensor mixed =
        torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return output(mixed.transpose(1, 2).reshape(x.sizes()));
  }
  torch::nn::LayerNorm attention_norm{nullptr};
  torch::nn::Linear projections{nullptr};
  torch::nn::Linear output{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear widen{nullptr};
  torch::nn::Linear narrow{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
LEVIN_UNIT(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(double dropout) {
    embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth));
    blocks = register_module("blocks", levin::Sequential());
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(Block(dropout));
    head = register_module("head", torch::nn::Linear(kWidth, kVocabulary));
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return head(blocks->forward(embedding(tokens))); }
  torch::nn::Embedding embedding{nullptr};
  levin::Sequential blocks{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

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
    Transformer model(dropout);
    levin::optim::SGD optimizer(model->parameters(), {.lr = 1e-3, .momentum = 0.9});
    const torch::Tensor tokens = torch::randint(kVocabulary, {kBatch, kLength + 1});
    const torch::Tensor inputs = tokens.narrow(1, 0, kLength).contiguous();
    const torch::Tensor targets = tokens.narrow(1, 1, kLength).reshape(-1);

    const auto run = [&](bool checkpointed) {
      std::optional<levin::ActivationCheckpointing> checkpointing;
      if (checkpointed) checkpointing.emplace(*model, levin::ActivationCheckpointingOptions{.units = {"Block"}});
      optimizer.zero_grad(/*set_to_none=*/false);
      Step step{};
      step.peak_bytes = AccountingAllocator::of_all_threads().peak_of([&] {
        const auto started = Clock::now();
        torch::nn::functional::cross_entropy(model(inputs).view({-1, kVocabulary}), targets).backward();
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
