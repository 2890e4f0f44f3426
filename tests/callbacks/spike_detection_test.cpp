#include <levin/callbacks/spike_detection.h>

#include "strategy_training.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

namespace levin {
namespace {

using testing::Devices;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::refusal_of;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// The loss of batch i is the i-th value of the data, whatever the weights are: a mean by the examples' counts, if any.
class ScriptedLoss : public Module {
 public:
  ScriptedLoss() { weight_ = register_parameter("weight", at::zeros({1})); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor* counts = batch.find("count");
    if (counts == nullptr) return batch["loss"].mean() + 0 * weight_.sum();
    const at::Tensor count = counts->sum();
    return StepOutput(
        {.loss = (batch["loss"] * *counts).sum() / count.clamp_min(1) + 0 * weight_.sum(), .weight = count});
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1});
  }

 private:
  at::Tensor weight_;
};

struct Script {
  std::vector<double> losses;
  std::vector<int64_t> counts = {};  ///< of each example
  SpikeDetectionOptions options;
  Devices devices;
  int64_t every = 1;  ///< log_every_n_steps
  int64_t epochs = 1;
  std::string folder = fresh_folder("spikes");
  std::string save_in;
  std::function<void(const SpikeDetection&)> watch;  ///< after each batch
};

struct Result {
  std::vector<SpikeDetection::Spike> spikes;
  State state;
  int64_t steps = 0;
  std::string file;
};

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Each loss is a batch of two examples, one on each of two ranks.
Result run(const Script& script, const std::string& ckpt = "") {
  TrainerOptions options = testing::quiet(script.epochs);
  options.strategy = Spec<Strategy>(Config::parse(script.devices.strategy, {.source = "test"}));
  options.devices = script.devices.count;
  options.log_every_n_steps = script.every;
  options.default_root_dir = script.folder;
  options.logger = {std::make_shared<testing::ValueLogger>()};
  const auto detection = make<SpikeDetection>(script.options);
  options.callbacks.emplace_back(detection);
  if (!script.save_in.empty())
    options.callbacks.emplace_back(make<LambdaCallback>(
        {.on_train_batch_end = [folder = script.save_in](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                                         int64_t) {
          trainer.save_checkpoint(fmt::format("{}/{}", folder, trainer.global_step()));
        }}));
  if (script.watch)
    options.callbacks.emplace_back(
        make<LambdaCallback>({.on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&, int64_t) {
          script.watch(*detection);
        }}));
  std::vector<float> values;
  for (const double loss : script.losses) {
    values.push_back(static_cast<float>(loss * 0.5));
    values.push_back(static_cast<float>(loss * 1.5));
  }
  Batch examples{{"loss", at::tensor(values)}};
  if (!script.counts.empty()) examples.set("count", at::tensor(script.counts));
  const auto data = std::make_shared<data::TensorDataset>(examples);
  Trainer trainer(options);
  trainer.fit(make<ScriptedLoss>(), DataLoader(data, {.global_batch_size = 2}), {}, ckpt);
  return {detection->spikes(), detection->state_dict(), trainer.global_step(),
          text_of(trainer.run_directory() + "/" + script.options.file)};
}

std::vector<int64_t> batches_of(const Result& result) {
  std::vector<int64_t> batches;
  for (const auto& spike : result.spikes) batches.push_back(spike.batch_idx);
  return batches;
}

using Batches = std::vector<int64_t>;

TEST(SpikeDetection, FindsWhatIsFarOffTheRunningMean) {
  // The mean of four is 1 when the 3.5 comes, which stays out of it; 2.9 is not twice the mean away.
  const Result result = run({.losses = {1, 1, 1, 1, 3.5, 1, 2.9, 1, 9}, .options = {.window = 4, .warmup = 2}});
  EXPECT_EQ(batches_of(result), (Batches{4, 8}));
  EXPECT_DOUBLE_EQ(result.spikes[0].loss, 3.5);
  EXPECT_DOUBLE_EQ(result.spikes[0].mean, 1);
  EXPECT_EQ(result.spikes[0].step, 5);
  EXPECT_NEAR(result.spikes[1].mean, (1 + 1 + 2.9 + 1) / 4, 1e-6);
}

TEST(SpikeDetection, FollowsItsOptions) {
  const std::vector<double> losses = {4, 4.2, 3.8, 4, 5, 4, 13, 1};
  const auto found = [&](const SpikeDetectionOptions& options) {
    return batches_of(run({.losses = losses, .options = options}));
  };
  EXPECT_EQ(found({.warmup = 1}), (Batches{6}));
  EXPECT_EQ(found({.warmup = 7}), Batches{}) << "spikes of the warm-up are none";
  EXPECT_EQ(found({.warmup = 1, .atol = 0.9, .rtol = std::nullopt}), (Batches{4, 6}));
  EXPECT_EQ(found({.warmup = 1, .atol = 20}), Batches{}) << "both bounds must be passed";
  EXPECT_EQ(found({.warmup = 3, .rtol = std::nullopt, .z_score = 3.0}), (Batches{4, 6}));
  EXPECT_EQ(found({.warmup = 1, .rtol = 0.5, .mode = "max"}), (Batches{7})) << "smaller is worse";
}

TEST(SpikeDetection, ALossThatIsNotFiniteIsASpikeOrNothing) {
  const std::vector<double> losses = {1, 1, 1, kNotANumber, 1, 5};
  const Result strict = run({.losses = losses, .options = {.warmup = 1}});
  EXPECT_EQ(batches_of(strict), (Batches{3, 5}));
  EXPECT_THAT(strict.file, HasSubstr(R"("loss": null)"));
  EXPECT_EQ(batches_of(run({.losses = losses, .options = {.warmup = 1, .finite_only = false}})), (Batches{5}));
}

TEST(SpikeDetection, WritesWhichBatchesToLeaveOut) {
  const Result result = run({.losses = {1, 1, 8, 1, 9}, .options = {.warmup = 1, .file = "bad.json"}, .every = 4});
  EXPECT_EQ(result.file, R"([
  {"epoch": 0, "batch_idx": 2, "step": 3, "exclude": [1, 2], "loss": 8, "mean": 1},
  {"epoch": 0, "batch_idx": 4, "step": 5, "exclude": [3, 4], "loss": 9, "mean": 1}
]
)");
}

TEST(SpikeDetection, TakesTheMeanOverTheRanks) {
  Script script{.losses = {1, 1, 1, 7, 1, 1, 1, 6.5}, .options = {.warmup = 1}, .every = 3, .epochs = 2};
  const Result single = run(script);
  script.devices = {"ddp_threads", 2};
  const Result both = run(script);
  EXPECT_EQ(batches_of(single), (Batches{3, 7, 3, 7}));
  EXPECT_EQ(batches_of(both), batches_of(single));
  EXPECT_EQ(both.file, single.file);
}

TEST(SpikeDetection, WeighsLossesAsTheirStepDoes) {
  // Losses of 0.5 and 1.5 times the scripted ones; those without a count are no losses at all.
  Script script{.losses = {2, 2, 2, 2, 2, 2, 2, 4},
                .counts = {1, 3, 1, 3, 0, 0, 0, 0, 0, 0, 1, 3, 0, 1, 1, 3},
                .options = {.window = 3, .warmup = 1, .rtol = 0.4}};
  const Result single = run(script);
  EXPECT_EQ(batches_of(single), (Batches{7}));
  EXPECT_EQ(single.spikes.at(0).loss, 5);
  EXPECT_EQ(single.spikes.at(0).mean, (2.5 + 2.5 + 3) / 3);
  script.devices = {"ddp_threads", 2};
  const Result both = run(script);
  EXPECT_EQ(batches_of(both), batches_of(single));
  EXPECT_EQ(both.file, single.file);
}

TEST(SpikeDetection, ReadsLossesBeforeTheyAreTooMany) {
  std::vector<double> losses(300, 1);
  losses[3] = 9;
  losses[280] = 8;
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}}) {
    Script script{.losses = losses, .options = {.warmup = 1}, .devices = devices, .every = 1000};
    std::vector<int64_t> seen;
    if (devices.count == 1)
      script.watch = [&](const SpikeDetection& detection) {
        seen.push_back(detection.state_dict().at("seen").as_int());
      };
    EXPECT_EQ(batches_of(run(script)), (Batches{3, 280})) << devices;
    if (devices.count > 1) continue;
    ASSERT_EQ(seen.size(), 300u);
    EXPECT_EQ(seen[254], 0) << "there is no boundary";
    EXPECT_EQ(seen[255], 256);
    EXPECT_EQ(seen[299], 256);
  }
}

TEST(SpikeDetection, StopsAllRanks) {
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}}) {
    const Result result = run({.losses = {1, 1, 9, 1, 1, 1, 1, 1, 1, 1},
                               .options = {.warmup = 1, .action = "stop"},
                               .devices = devices,
                               .epochs = 3});
    EXPECT_GE(result.steps, 3) << devices;
    EXPECT_LE(result.steps, 10) << devices;
  }
}

TEST(SpikeDetection, RaisesAtTheBoundary) {
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}})
    EXPECT_THAT(refusal_of([&] {
                  run({.losses = {1, 1, 9, 1, 1, 12, 1},
                       .options = {.warmup = 1, .action = "raise"},
                       .devices = devices,
                       .every = 6});
                }),
                HasSubstr("[spike_detection] the loss 9 of batch 2 in epoch 0 (step 3) is a spike: the running mean is "
                          "1; 1 more follow"))
        << devices;
}

TEST(SpikeDetection, GoesOnWhereItWas) {
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}}) {
    Script script{.losses = {1, 1.5, 1, 8, 1, 2, 1, 9},
                  .options = {.window = 3, .warmup = 2},
                  .devices = devices,
                  .every = 3,
                  .epochs = 2};
    const Result plain = run(script);
    script.save_in = fresh_folder("spikes_resume");
    const Result whole = run(script);
    EXPECT_EQ(whole.file, plain.file) << "saving reads losses earlier, and changes nothing";
    ASSERT_EQ(whole.spikes.size(), 4u);
    const std::string saved = script.save_in;
    script.save_in.clear();
    for (int64_t step = 1; step < 16; ++step) {
      script.folder = fresh_folder("spikes");
      const Result resumed = run(script, fmt::format("{}/{}", saved, step));
      EXPECT_EQ(batches_of(resumed), batches_of(whole)) << devices << ", from step " << step;
      EXPECT_EQ(resumed.state.at("last").as_double(), whole.state.at("last").as_double());
      EXPECT_EQ(resumed.state.at("window").as_list().size(), 3u);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(resumed.state.at("window").as_list()[i].as_double(),
                  whole.state.at("window").as_list()[i].as_double());
    }
  }
}

TEST(SpikeDetection, ChangesNothing) {
  for (const Devices& devices : {Devices{}, Devices{"dp", 2}, Devices{"ddp_threads", 2},
                                 Devices{"{name: pipeline_threads, balance: [1, 1], micro_batches: 2}", 2}}) {
    const testing::Outcome plain = testing::train({.epochs = 2}, devices);
    const testing::Outcome watched =
        testing::train({.callback = "{spike_detection: {rtol: 0.1, warmup: 1}}", .epochs = 2}, devices);
    EXPECT_TRUE(identical(watched.weights, plain.weights)) << devices;
  }
}

TEST(SpikeDetection, RefusesBadInput) {
  const auto refusal = [](const std::string& options) {
    return refusal_of([&] {
      testing::train({.callback = fmt::format("{{spike_detection: {{{}}}}}", options), .epochs = 1}, Devices{});
    });
  };
  EXPECT_THAT(refusal("window: 0"), HasSubstr("spike_detection.window must be at least 1; got 0"));
  EXPECT_THAT(refusal("warmup: -1"), HasSubstr("warmup must be at least 0"));
  EXPECT_THAT(refusal("rtol: -1"), HasSubstr("rtol must be at least 0"));
  EXPECT_THAT(refusal("rtol: null"), HasSubstr("needs atol, rtol or z_score"));
  EXPECT_THAT(refusal("z_score: 3, window: 1"), HasSubstr("window must be at least 2 for a z_score"));
  EXPECT_THAT(refusal("mode: least"), HasSubstr("mode must be one of min, max"));
  EXPECT_THAT(refusal("action: shout"), HasSubstr("action must be one of warn, stop, raise"));
  EXPECT_THAT(refusal("file: ../spikes.json"), HasSubstr("a file name without folders"));
  EXPECT_THAT(refusal("treshold: 1"), HasSubstr("spike_detection"));
}

}  // namespace
}  // namespace levin
