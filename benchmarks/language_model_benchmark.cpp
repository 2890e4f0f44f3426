/// Training steps of a language model: trainer.fit with causal_lm, ordinary and recorded, against a loop of PyTorch
/// with transformers' model and AdamW(fused=True), each in a process of its own, one after another on one thread.
/// Prints processor time a step and the median of the ratios.
///
///   build/bin/language_model_benchmark FOLDER "PYTHON benchmarks/peers/language_model.py" [rounds] [steps] [rows]
///   [length]
///
/// The Python program makes FOLDER where there is none; with "" for it, Levin alone.

#include "measure.h"
#include "run_in_turns.h"

#include <levin/levin.h>

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;

constexpr int64_t kWarmUp = 12;

/// Counts the time of all steps but the first, in which memory is taken and steps are recorded.
struct TimedSteps : levin::Callback {
  void on_train_batch_start(levin::Trainer&, levin::Module&, const levin::Batch&, int64_t batch_idx) override {
    if (batch_idx == kWarmUp) started = processor_seconds();
  }
  void on_train_end(levin::Trainer&, levin::Module&) override { seconds = processor_seconds() - started; }
  double started = 0;
  double seconds = 0;
};

double train(const std::string& folder, const std::string& precision, bool graph, int64_t steps, int64_t rows,
             int64_t length) {
  at::set_num_threads(1);
  levin::seed_everything(0);
  auto module = std::make_shared<levin::CausalLm>(levin::CausalLmOptions{.path = folder});
  const int64_t words = module->model()->options().vocabulary;
  const int64_t examples = rows * (steps + kWarmUp);
  const auto tokens = torch::randint(words, {examples, length + 1});
  const auto timed = std::make_shared<TimedSteps>();
  levin::TrainerOptions options;
  options.max_epochs = 1;
  options.accelerator = "cpu";
  options.precision = precision;
  options.optimizer = levin::Spec<levin::optim::NamedOptimizer>(levin::Config::parse("{name: adamw, lr: 1.0e-4}", {}));
  options.graph = graph;
  options.barebones = true;
  options.callbacks = {timed};
  levin::Trainer trainer(options);
  const auto data = std::make_shared<levin::data::TensorDataset>(levin::Batch{
      {"tokens", tokens.narrow(1, 0, length).contiguous()}, {"next", tokens.narrow(1, 1, length).contiguous()}});
  trainer.fit(module, levin::DataLoader(data, {.batch_size = rows}));
  return timed->seconds / static_cast<double>(steps);
}

double output_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  double value = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &value) != 1) throw std::runtime_error("failed: " + command);
  pclose(pipe);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    std::printf("%g\n", train(argv[2], argv[3], std::string(argv[4]) == "recorded", std::atoll(argv[5]),
                              std::atoll(argv[6]), std::atoll(argv[7])));
    return 0;
  }
  if (argc < 3) {
    std::fprintf(stderr, "usage: language_model_benchmark FOLDER PEER [rounds] [steps] [rows] [length]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const std::string peer = argv[2];
  const auto number = [&](int index, int64_t otherwise) { return argc > index ? std::atoll(argv[index]) : otherwise; };
  const int64_t rounds = number(3, 5);
  const int64_t steps = number(4, 20);
  const std::string sizes = fmt::format("{} {} {}", steps, number(5, 4), number(6, 256));
  if (!std::filesystem::exists(folder + "/config.json")) output_of(fmt::format("{} {} 32-true 0 0 0", peer, folder));
  for (const std::string precision : {"32-true", "bf16-mixed"}) {
    std::vector<double> eager;
    std::vector<std::vector<double>> own(2), ratios(2);
    for (int64_t round = 0; round < rounds; ++round) {
      if (!peer.empty()) eager.push_back(output_of(fmt::format("{} {} {} {}", peer, folder, precision, sizes)));
      for (size_t i = 0; i < 2; ++i) {
        own[i].push_back(output_of(fmt::format("{} --variant {} {} {} {} 2>/dev/null", argv[0], folder, precision,
                                               i == 0 ? "ordinary" : "recorded", sizes)));
        if (!peer.empty()) ratios[i].push_back(own[i].back() / eager.back());
      }
    }
    if (!peer.empty()) std::printf("%s: PyTorch's loop %.1f ms", precision.c_str(), 1e3 * median(eager));
    for (size_t i = 0; i < 2; ++i) {
      std::printf("%s%s %.1f ms", i == 0 && peer.empty() ? precision.c_str() : ",", i == 0 ? " fit" : " recorded",
                  1e3 * median(own[i]));
      if (!peer.empty()) std::printf(" (%.3f of it)", median(ratios[i]));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
