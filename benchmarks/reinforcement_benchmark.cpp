/// The learners of examples/reinforcement against those of Stable-Baselines3: the same networks, batches, updates and
/// steps of the environments, each in a process of its own, one after another on one thread. Prints processor time a
/// step of one environment, learning included, and the medians of the ratios to Stable-Baselines3.
///
///   build/bin/reinforcement_benchmark "PYTHON benchmarks/peers/stable_baselines.py" [rounds] [steps] [case]
///
/// `steps`: of each environment, a multiple of 512; `case`: such as ppo-4. With "" for the first word, Levin alone.

#include "../examples/reinforcement/dqn.h"
#include "../examples/reinforcement/ppo.h"
#include "../examples/reinforcement/sac.h"
#include "measure.h"
#include "run_in_turns.h"

#include <levin/levin.h>

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;

/// Steps of each environment before what is measured: those in which memory is taken and steps are recorded.
constexpr int64_t kWarmUp = 512;

/// Counts the time from an epoch on.
struct TimedEpochs : levin::Callback {
  explicit TimedEpochs(int64_t first) : first(first) {}
  void on_train_epoch_start(levin::Trainer& trainer, levin::Module&) override {
    if (trainer.current_epoch() == first) started = processor_seconds();
  }
  void on_train_end(levin::Trainer&, levin::Module&) override { seconds = processor_seconds() - started; }
  int64_t first;
  double started = 0;
  double seconds = 0;
};

struct Learner {
  std::shared_ptr<levin::Module> module;
  int64_t steps_an_epoch = 0;   ///< of each environment
  double largest_gradient = 0;  ///< 0: any
};

Learner make_learner(const std::string& algorithm, int64_t environments) {
  if (algorithm == "ppo") {
    const reinforcement::PpoOptions options{.environments = environments};
    return {std::make_shared<reinforcement::Ppo>(options), options.steps, 0.5};
  }
  if (algorithm == "dqn") {
    const reinforcement::DqnOptions options{.environments = environments,
                                            .updates_an_epoch = kWarmUp,
                                            .n_step = 1,
                                            .double_estimate = false,
                                            .exploration = 1};
    return {std::make_shared<reinforcement::Dqn>(options), options.updates_an_epoch, 10};
  }
  const reinforcement::SacOptions options{.environments = environments, .updates_an_epoch = kWarmUp};
  return {std::make_shared<reinforcement::Sac>(options), options.updates_an_epoch};
}

/// Returns the seconds a step of one environment.
double learn(const std::string& algorithm, int64_t environments, bool recorded, int64_t steps) {
  at::set_num_threads(1);
  levin::seed_everything(1);
  const Learner learner = make_learner(algorithm, environments);
  const auto epochs = [&](int64_t count) { return count / learner.steps_an_epoch; };
  const auto timed = std::make_shared<TimedEpochs>(epochs(kWarmUp));
  levin::TrainerOptions options;
  options.max_epochs = epochs(kWarmUp + steps);
  options.accelerator = "cpu";
  options.graph = recorded;
  if (learner.largest_gradient > 0) options.gradient_clip_val = learner.largest_gradient;
  options.logger = false;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.callbacks = {timed};
  levin::Trainer trainer(options);
  trainer.fit(learner.module);
  return timed->seconds / static_cast<double>(steps * environments);
}

double output_of(const std::string& command) {
  FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  double seconds = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &seconds) != 1) throw std::runtime_error("failed: " + command);
  pclose(pipe);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 5 && std::string(argv[1]) == "--variant") {
    std::printf("%g\n", learn(argv[2], std::atoll(argv[3]), std::string(argv[5]) == "recorded", std::atoll(argv[4])));
    return 0;
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: reinforcement_benchmark PEER [rounds] [steps] [case]\n");
    return 2;
  }
  const std::string peer = argv[1];
  const int64_t rounds = argc > 2 ? std::atoll(argv[2]) : 5;
  const int64_t steps = argc > 3 ? std::atoll(argv[3]) : 4096;
  const std::string wanted = argc > 4 ? argv[4] : "";
  std::vector<std::string> variants = {"ordinary", "recorded"};
  if (!peer.empty()) variants.insert(variants.begin(), "Stable-Baselines3");
  for (const std::string algorithm : {"ppo", "dqn", "sac"})
    for (const int environments : {4, 16}) {
      if (!wanted.empty() && wanted != fmt::format("{}-{}", algorithm, environments)) continue;
      std::vector<std::vector<double>> seconds(variants.size()), ratios(variants.size());
      for (int64_t round = 0; round < rounds; ++round)
        for (size_t i = 0; i < variants.size(); ++i) {
          const std::string words = fmt::format("{} {} {}", algorithm, environments, steps);
          const bool is_peer = !peer.empty() && i == 0;
          seconds[i].push_back(
              output_of(is_peer ? peer + " " + words : fmt::format("{} --variant {} {}", argv[0], words, variants[i])));
          ratios[i].push_back(seconds[0].back() / seconds[i].back());
        }
      for (size_t i = 0; i < variants.size(); ++i)
        std::printf("%s, %d environments, %s: %.1f us a step (%.2f times as fast as %s)\n", algorithm.c_str(),
                    environments, variants[i].c_str(), 1e6 * median(seconds[i]), median(ratios[i]),
                    variants[0].c_str());
      std::fflush(stdout);
    }
  return 0;
}
