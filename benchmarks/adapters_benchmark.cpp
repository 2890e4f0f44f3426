/// Training steps of adapters on a language model: trainer.fit with causal_lm, ordinary and recorded, over weights as
/// they are and in 4 bits, against PEFT in a loop of PyTorch and under transformers' Trainer, each in a process of its
/// own, one after another on one thread. Prints processor time a step, the growth of the process's peak while it
/// trains, and the medians of the ratios to PEFT's loop.
///
///   build/bin/adapters_benchmark FOLDER "PYTHON benchmarks/peers/peft_adapters.py" [rounds] [steps] [rows] [length]
///
/// The Python program makes FOLDER where there is none; with "" for it, Levin alone.

#include "measure.h"
#include "run_in_turns.h"

#include <levin/levin.h>

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;

constexpr int64_t kWarmUp = 6;

struct Measured {
  double seconds = 0;
  double peak = 0;  ///< MiB
};

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// Counts the time of all steps but the first, in which memory is taken and steps are recorded.
struct TimedAdapterSteps : levin::Callback {
  void on_train_batch_start(levin::Trainer&, levin::Module&, const levin::Batch&, int64_t batch_idx) override {
    if (batch_idx == kWarmUp) started = processor_seconds();
  }
  void on_train_end(levin::Trainer&, levin::Module&) override { seconds = processor_seconds() - started; }
  double started = 0;
  double seconds = 0;
};

Measured train(const std::string& folder, const std::string& variant, const std::string& targets, int64_t steps,
               int64_t rows, int64_t length) {
  at::set_num_threads(1);
  levin::seed_everything(0);
  auto module = std::make_shared<levin::CausalLm>(levin::CausalLmOptions{.path = folder});
  const int64_t words = module->model()->options().vocabulary;
  const auto tokens = torch::randint(words, {rows * (steps + kWarmUp), length + 1});
  const auto timed = std::make_shared<TimedAdapterSteps>();
  levin::AdapterOptions adapters{.name = "lora", .rank = 8, .alpha = 16};
  adapters.targets =
      targets == "qv" ? std::vector<std::string>{"*.q_proj", "*.v_proj"} : std::vector<std::string>{"*_proj"};
  if (variant == "nf4") adapters.quantize = "nf4";
  levin::add_adapters(*module, adapters);
  levin::TrainerOptions options;
  options.max_epochs = 1;
  options.accelerator = "cpu";
  options.optimizer = levin::Spec<levin::optim::NamedOptimizer>(levin::Config::parse("{name: adamw, lr: 1.0e-4}", {}));
  options.graph = variant == "recorded";
  options.barebones = true;
  options.callbacks = {timed};
  levin::Trainer trainer(options);
  const auto data = std::make_shared<levin::data::TensorDataset>(levin::Batch{
      {"tokens", tokens.narrow(1, 0, length).contiguous()}, {"next", tokens.narrow(1, 1, length).contiguous()}});
  const double before = peak_mebibytes();
  trainer.fit(module, levin::DataLoader(data, {.batch_size = rows}));
  return {timed->seconds / static_cast<double>(steps), peak_mebibytes() - before};
}

Measured output_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  Measured measured;
  if (pipe == nullptr || std::fscanf(pipe, "%lf %lf", &measured.seconds, &measured.peak) != 2)
    throw std::runtime_error("failed: " + command);
  pclose(pipe);
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    const Measured measured =
        train(argv[2], argv[3], argv[4], std::atoll(argv[5]), std::atoll(argv[6]), std::atoll(argv[7]));
    std::printf("%g %g\n", measured.seconds, measured.peak);
    return 0;
  }
  if (argc < 3) {
    std::fprintf(stderr, "usage: adapters_benchmark FOLDER PEER [rounds] [steps] [rows] [length]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const std::string peer = argv[2];
  const auto number = [&](int index, int64_t otherwise) { return argc > index ? std::atoll(argv[index]) : otherwise; };
  const int64_t rounds = number(3, 5);
  const std::string sizes = fmt::format("{} {} {}", number(4, 10), number(5, 4), number(6, 256));
  if (!std::filesystem::exists(folder + "/config.json")) output_of(fmt::format("{} {} loop qv 0 0 0", peer, folder));
  std::vector<std::string> variants = {"ordinary", "recorded", "nf4"};
  if (!peer.empty()) variants.insert(variants.begin(), {"loop", "trainer"});
  for (const std::string targets : {"qv", "all"}) {
    std::vector<std::vector<double>> seconds(variants.size()), peaks(variants.size()), ratios(variants.size());
    for (int64_t round = 0; round < rounds; ++round)
      for (size_t i = 0; i < variants.size(); ++i) {
        const bool is_peer = !peer.empty() && i < 2;
        const std::string command = is_peer ? peer + " " + folder + " " + variants[i]
                                            : fmt::format("{} --variant {} {}", argv[0], folder, variants[i]);
        const Measured measured = output_of(fmt::format("{} {} {} 2>/dev/null", command, targets, sizes));
        seconds[i].push_back(measured.seconds);
        peaks[i].push_back(measured.peak);
        ratios[i].push_back(measured.seconds / seconds[0].back());
      }
    for (size_t i = 0; i < variants.size(); ++i)
      std::printf("%s %s: %.1f ms (%.3f of %s), peak %.0f MiB\n", targets.c_str(), variants[i].c_str(),
                  1e3 * median(seconds[i]), median(ratios[i]), variants[0].c_str(), median(peaks[i]));
    std::fflush(stdout);
  }
  return 0;
}
