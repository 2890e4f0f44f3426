/// What dividing layers over ranks costs under `tensor`: a GPT of 4 blocks of width 256, vocabulary 512, batch 4 x 128
/// tokens, AdamW. benchmarks/peers/tensor_parallel.py is PyTorch's counterpart.
///
///   build/bin/tensor_benchmark [rounds] [steps]      processor time of rank 0 a step
///   build/bin/tensor_benchmark --variant N [steps]   one variant, as it lists them: prints the seconds of a step
///
/// Each rank is a process with one thread. Variants run in turn, each in processes of its own.

#include "measure.h"

#include <levin/levin.h>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::run_in_process;

constexpr int64_t kVocabulary = 512;
constexpr int64_t kLength = 128;
constexpr int64_t kWidth = 256;
constexpr int64_t kBlocks = 4;
constexpr int64_t kHeads = 4;
constexpr int64_t kBatch = 4;
constexpr int64_t kWarmUp = 5;

struct BlockImpl : torch::nn::Module, levin::HasTensorPlan {
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm1(x)).unflatten(2, {3, -1, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind();
    const torch::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    const torch::Tensor y = x + out(mixed.transpose(1, 2).flatten(2));
    return y + down(torch::gelu(up(norm2(y)), "tanh"));
  }
  levin::TensorPlan tensor_plan() const override {
    using Cut = levin::TensorCut;
    return {{.pattern = "qkv", .cut = Cut::kColumn, .parts = 3, .heads = kHeads},
            {.pattern = "out", .cut = Cut::kRow, .heads = kHeads},
            {.pattern = "up", .cut = Cut::kColumn},
            {.pattern = "down", .cut = Cut::kRow}};
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
LEVIN_UNIT(Block);

class Gpt : public levin::Module, public levin::HasTensorPlan {
 public:
  void configure_model() override {
    if (tokens_) return;
    tokens_ = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    positions_ = register_parameter("positions", torch::randn({kLength, kWidth}) * 0.1);
    for (int64_t i = 0; i < kBlocks; ++i) blocks_.push_back(register_module("block" + std::to_string(i), Block()));
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head_ = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
  }
  levin::TensorPlan tensor_plan() const override {
    return {{.pattern = "tokens", .cut = levin::TensorCut::kVocabulary},
            {.pattern = "head", .cut = levin::TensorCut::kVocabulary}};
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    torch::Tensor x = tokens_(batch["tokens"]) + positions_;
    for (Block& block : blocks_) x = block(x);
    return torch::nn::functional::cross_entropy(head_(norm_(x)).flatten(0, 1), batch["targets"].flatten());
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }

 private:
  torch::nn::Embedding tokens_{nullptr};
  torch::Tensor positions_;
  std::vector<Block> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};

struct Variant {
  const char* strategy;
  int64_t ranks;
};
const std::vector<Variant> kVariants{{"{name: single_device}", 1},
                                     {"{tensor: 1}", 1},
                                     {"{tensor: 2, backend: gloo}", 2},
                                     {"{tensor: 2}", 2},
                                     {"{tensor: 4, backend: gloo}", 4}};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Prints what rank 0 computes for a step, without the first ones.
class ProcessorTimer : public levin::Callback {
 public:
  void on_train_batch_start(levin::Trainer& trainer, levin::Module&, const levin::Batch&, int64_t) override {
    if (trainer.global_step() == kWarmUp) began_ = processor_seconds();
  }
  void on_train_end(levin::Trainer& trainer, levin::Module&) override {
    if (!trainer.is_global_zero()) return;
    std::printf("%.9f\n", (processor_seconds() - began_) / static_cast<double>(trainer.global_step() - kWarmUp));
    std::fflush(stdout);
  }

 private:
  double began_ = 0;
};

void fit(const Variant& variant, int64_t steps) {
  const auto random = [&] { return torch::randint(kVocabulary, {kBatch * steps, kLength}); };
  const auto data =
      std::make_shared<levin::data::TensorDataset>(levin::Batch{{"tokens", random()}, {"targets", random()}});
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.devices = static_cast<int>(variant.ranks);
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(variant.strategy, {}));
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.callbacks = {levin::make<ProcessorTimer>()};
  levin::Trainer trainer(options);
  trainer.fit(levin::make<Gpt>(), levin::DataLoader(data, {.global_batch_size = kBatch}));
}

void compare(const std::string& program, int64_t rounds, int64_t steps) {
  std::vector<std::vector<double>> seconds(kVariants.size());
  std::vector<std::vector<double>> ratios(kVariants.size());
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < kVariants.size(); ++i) seconds[i].push_back(run_in_process(program, i, steps));
    for (size_t i = 0; i < kVariants.size(); ++i) ratios[i].push_back(seconds[i].back() / seconds[0].back());
  }
  std::printf("%d rounds of %d steps: ms of processor time a step, and of single_device's\n", static_cast<int>(rounds),
              static_cast<int>(steps));
  for (size_t i = 0; i < kVariants.size(); ++i)
    std::printf("%-28s %8.1f  %6.3f\n", kVariants[i].strategy, 1e3 * median(seconds[i]), median(ratios[i]));
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  if (argc > 2 && std::string(argv[1]) == "--variant")
    fit(kVariants.at(std::stoul(argv[2])), (argc > 3 ? std::stoll(argv[3]) : 40) + kWarmUp);
  else
    compare(argv[0], argc > 1 ? std::stoll(argv[1]) : 5, argc > 2 ? std::stoll(argv[2]) : 40);
  return 0;
}
