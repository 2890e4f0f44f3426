/// Training over two dimensions of a mesh on four ranks: an embedding, 4 transformer blocks of width 256 and a linear
/// layer, batch 8 x 128 tokens a data-parallel rank, AdamW. benchmarks/peers/mesh.py is PyTorch's counterpart.
///
///   build/bin/mesh_benchmark PEER [rounds] [steps]   processor time of rank 0 a step, and of PyTorch's
///   build/bin/mesh_benchmark --variant N [steps]     one variant, as it lists them: prints the seconds of a step
///
/// PEER is "PYTHON benchmarks/peers/mesh.py", or "" for Levin alone. Each rank is a process with one thread. Variants
/// run in turn, each in processes of its own.

#include "measure.h"
#include "run_in_turns.h"
#include "transformer.h"

#include <levin/levin.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::Block;
using levin::benchmarks::kBatch;
using levin::benchmarks::kLength;
using levin::benchmarks::kVocabulary;
using levin::benchmarks::kWidth;
using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;
using levin::benchmarks::run_in_process;

constexpr int64_t kBlocks = 4;
constexpr int64_t kWarmUp = 5;

class LanguageModel : public levin::Module {
 public:
  void configure_model() override {
    if (net_) return;
    levin::Sequential net(torch::nn::Embedding(kVocabulary, kWidth));
    for (int64_t i = 0; i < kBlocks; ++i) net->push_back(Block(/*dropout=*/0));
    net->push_back(torch::nn::Linear(kWidth, kVocabulary));
    net_ = register_module("net", net);
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return torch::nn::functional::cross_entropy(net_->forward(batch["tokens"]).flatten(0, 1),
                                                batch["targets"].flatten());
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }

 private:
  levin::Sequential net_{nullptr};
};

struct Variant {
  const char* strategy;
  int64_t data_ranks;  ///< ranks with different batches, of four
  const char* peer;    ///< the name of PyTorch's counterpart
};
const std::vector<Variant> kVariants{
    {"{replicate: 2, shard: 2, backend: gloo}", 4, "replicate_shard"},
    {"{pipeline: {size: 2, schedule: 1f1b, micro_batches: 4}, shard: 2, backend: gloo}", 2, "pipeline_shard"},
    {"{replicate: 2, shard: 2}", 4, "replicate_shard"},
    {"{pipeline: {size: 2, schedule: 1f1b, micro_batches: 4}, shard: 2}", 2, "pipeline_shard"}};

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
  const auto random = [&] { return torch::randint(kVocabulary, {kBatch * variant.data_ranks * steps, kLength}); };
  const auto data =
      std::make_shared<levin::data::TensorDataset>(levin::Batch{{"tokens", random()}, {"targets", random()}});
  levin::TrainerOptions options;
  options.max_steps = steps;
  options.accelerator = "cpu";
  options.devices = 4;
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(variant.strategy, {}));
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.callbacks = {levin::make<ProcessorTimer>()};
  levin::Trainer trainer(options);
  trainer.fit(levin::make<LanguageModel>(), levin::DataLoader(data, {.batch_size = kBatch}));
}

/// The seconds that PyTorch's counterpart prints.
double seconds_of_peer(const std::string& peer, const Variant& variant, int64_t steps) {
  const std::string command = peer + " " + variant.peer + " " + std::to_string(steps) + " 2>/dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  double seconds = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &seconds) != 1) throw std::runtime_error("failed: " + command);
  pclose(pipe);
  return seconds;
}

void compare(const std::string& program, const std::string& peer, int64_t rounds, int64_t steps) {
  std::printf("%d rounds of %d steps: ms of processor time a step, PyTorch's, and the median of the rounds' ratios\n",
              static_cast<int>(rounds), static_cast<int>(steps));
  for (size_t i = 0; i < kVariants.size(); ++i) {
    std::vector<double> own, of_peer, ratios;
    for (int64_t round = 0; round < rounds; ++round) {
      own.push_back(run_in_process(program, i, steps));
      of_peer.push_back(peer.empty() ? own.back() : seconds_of_peer(peer, kVariants[i], steps));
      ratios.push_back(own.back() / of_peer.back());
    }
    std::printf("%-84s %8.1f %8.1f  %6.3f\n", kVariants[i].strategy, 1e3 * median(own), 1e3 * median(of_peer),
                median(ratios));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--variant" && argc > 2)
    fit(kVariants.at(std::stoul(argv[2])), (argc > 3 ? std::stoll(argv[3]) : 20) + kWarmUp);
  else
    compare(argv[0], first, argc > 2 ? std::stoll(argv[2]) : 5, argc > 3 ? std::stoll(argv[3]) : 20);
  return 0;
}
