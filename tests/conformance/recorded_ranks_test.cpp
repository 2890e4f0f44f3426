#include "tests/conformance/strategy_case.h"

#include <levin/core/base/error.h>
#include <levin/core/optim/adam.h>

#include "tests/loggers/stand_in_server.h"
#include "tests/support/fit_outcome.h"
#include "tests/support/self_program.h"
#include "tests/support/tiny_stream.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Ranks that record their steps (`graph`), of every start method, whose steps are of different kinds: one that records
/// anew, takes ordinary steps or has a hook while the others replay. A run is one without `graph`, to the bit, and rank
/// 0 says why another rank's steps are not recorded.
namespace levin::testing {
namespace {

namespace F = torch::nn::functional;
using ::testing::HasSubstr;

constexpr int64_t kOfRank = 4;  ///< examples of a batch
constexpr int64_t kBatches = 18;

struct RankNet;
using OnNet = std::function<void(RankNet&, Trainer&)>;

struct RankVariant {
  const char* name;
  std::function<at::Tensor(RankNet&, const at::Tensor& loss, const Batch&)> change = nullptr;
  OnNet before_batch = nullptr;
  OnNet after_backward = nullptr;
  OnNet before_step = nullptr;
  OnNet after_batch = nullptr;
  std::function<void(TrainerOptions&)> options = nullptr;
  int64_t examples = 2 * kOfRank * kBatches;
  bool is_stream = false;
  bool is_manual = false;
  const char* says = "";  ///< in the log of rank 0's recorded run
};

const RankVariant& variant_of(const std::string& name);

struct RankNetOptions {
  std::string variant;
  static void describe(Schema<RankNetOptions>& schema) {
    schema.field("variant", &RankNetOptions::variant, "the name of one");
  }
};

struct RankNet final : Module {
  using Options = RankNetOptions;
  explicit RankNet(const Options& options) : variant(variant_of(options.variant)) {
    automatic_optimization = !variant.is_manual;
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    second = register_module("second", torch::nn::Linear(8, 3));
    table = register_buffer("table", at::arange(8, at::kFloat));
  }
  int64_t rank() { return trainer().global_rank(); }
  at::Tensor loss_of(const Batch& batch) {
    hidden = first(batch["x"]);
    hidden = (batch.size() > 1 ? norm(hidden) : hidden * norm->weight + norm->bias).relu();
    const at::Tensor classes =
        batch["y"].scalar_type() == at::kLong ? batch["y"] : (batch["y"] > 0).flatten().to(at::kLong);
    at::Tensor loss = F::cross_entropy(second(dropout(hidden)) + table.mean(), classes);
    if (variant.change) loss = variant.change(*this, loss, batch);
    hidden = at::Tensor();
    return loss;
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor loss = loss_of(batch);
    log("loss", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
    if (automatic_optimization) return loss;
    optimizer(0).zero_grad();
    manual_backward(loss);
    clip_gradients(optimizer(0), 0.5);
    optimizer(0).step();
    return {};
  }
  bool on_train_batch_start(const Batch&, int64_t) override {
    call(variant.before_batch);
    return true;
  }
  void on_after_backward() override { call(variant.after_backward); }
  void on_before_optimizer_step(OptimizerHandle&) override { call(variant.before_step); }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { call(variant.after_batch); }
  void call(const OnNet& hook) {
    if (!hook) return;
    const auto full = trainer().full_parameters(*this);
    hook(*this, trainer());
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02}),
                           .scheduler = {.name = "exponential", .interval = Interval::kStep}};
  }

  const RankVariant& variant;
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor table;
  at::Tensor hidden;  ///< of the step under way
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  at::Generator other_generator = at::make_generator<at::CPUGeneratorImpl>(6);
  unsigned hook = 0;
};

/// Of these batches, counted over all epochs, on that rank (-1: on all).
OnNet at_batches(std::vector<int64_t> batches, int64_t rank, std::function<void(RankNet&)> what) {
  return [=](RankNet& net, Trainer& trainer) {
    if (rank >= 0 && net.rank() != rank) return;
    if (std::find(batches.begin(), batches.end(), trainer.total_batches()) != batches.end()) what(net);
  };
}
OnNet from_batch(int64_t batch, int64_t rank, std::function<void(RankNet&)> what) {
  return at_batches({batch}, rank, std::move(what));
}
OnNet in_each(int64_t rank, std::function<void(RankNet&)> what) {
  return [=](RankNet& net, Trainer&) {
    if (rank < 0 || net.rank() == rank) what(net);
  };
}

at::Tensor halved(const at::Tensor& gradient) { return gradient * 0.5; }
void clear_one(RankNet& net) { net.first->weight.mutable_grad().reset(); }
void halve_gradients(RankNet& net) {
  for (const auto& parameter : net.parameters())
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.5);
}
void put_others_in_place(RankNet& net) {
  for (const auto& parameter : net.parameters())
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() * 0.5;
}
at::Tensor noise(const at::Generator& generator) { return at::randn({8}, generator) * 0.1; }

std::vector<RankVariant> rank_variants() {
  const auto windows = [](int64_t size) {
    return [size](TrainerOptions& options) { options.accumulate_grad_batches = size; };
  };
  const auto precision = [](const char* name, int64_t window = 1, double clip = 0) {
    return [=](TrainerOptions& options) {
      options.precision = name;
      if (window > 1) options.accumulate_grad_batches = window;
      if (clip > 0) options.gradient_clip_val = clip;
    };
  };
  const auto clips = [](TrainerOptions& options) { options.gradient_clip_val = 0.1; };
  const auto clips_values = [](TrainerOptions& options) {
    options.gradient_clip_val = 0.01;
    options.gradient_clip_algorithm = "value";
  };
  const auto with_noise = [](RankNet& net, const at::Tensor& loss, const Batch&) {
    return loss + (net.hidden * (noise(net.generator) + noise(net.other_generator) * at::rand({8}))).mean();
  };
  const auto reads = [](int64_t rank) {
    return [rank](RankNet& net, const at::Tensor& loss, const Batch&) {
      return net.rank() == rank && loss.item<float>() > 0.9F ? loss * 2 : loss;
    };
  };
  const char* const only_1 = "[graph] steps are not recorded on rank 1: ";
  const auto adds_hook = [](RankNet& net) { net.hook = net.first->weight.register_hook(halved); };
  const auto removes_hook = [](RankNet& net) { net.first->weight.remove_hook(net.hook); };
  std::vector<RankVariant> variants = {
      {.name = "dropout"},
      {.name = "windows of two", .options = windows(2)},
      {.name = "windows of three, the last one of two", .options = windows(4)},
      {.name = "clipping", .options = clips},
      {.name = "clipping of values in windows",
       .options =
           [=](TrainerOptions& options) {
             clips_values(options);
             options.accumulate_grad_batches = 3;
           }},
      {.name = "bf16-mixed", .options = precision("bf16-mixed")},
      {.name = "bf16-mixed in clipped windows", .options = precision("bf16-mixed", 2, 0.1)},
      {.name = "16-mixed", .options = precision("16-mixed")},
      {.name = "16-mixed in clipped windows", .options = precision("16-mixed", 2, 0.1)},
      {.name = "a last batch that ranks share unevenly", .examples = 2 * kOfRank * kBatches - 3},
      {.name = "a last batch of one example", .examples = 2 * kOfRank * kBatches - 7},
      {.name = "uneven batches in windows", .options = windows(2), .examples = 2 * kOfRank * kBatches - 3},
      {.name = "a stream", .examples = 2 * kOfRank * kBatches, .is_stream = true},
      {.name = "a stream in windows", .options = windows(2), .is_stream = true},
      {.name = "manual optimization", .is_manual = true},
      {.name = "manual optimization in 16-mixed", .options = precision("16-mixed"), .is_manual = true},
      {.name = "generators", .change = with_noise},
      {.name = "generators in windows", .change = with_noise, .options = windows(2)},
      {.name = "generators that a callback draws from on rank 1",
       .change = with_noise,
       .before_batch = in_each(1, [](RankNet& net) { at::randn({3}, net.generator); }),
       .after_batch = in_each(1, [](RankNet&) { at::rand({1}); })},
      {.name = "generators of rank 1 that are seeded in mid-epoch",
       .change = with_noise,
       .before_batch = from_batch(13, 1, [](RankNet& net) { net.generator.set_current_seed(77); })},
      {.name = "a generator of rank 1 that is exchanged",
       .change = with_noise,
       .before_batch =
           from_batch(13, 1, [](RankNet& net) { net.generator = at::make_generator<at::CPUGeneratorImpl>(9); })},
      {.name = "a branch of rank 1", .change = reads(1), .says = only_1},
      {.name = "a branch of rank 1 in windows", .change = reads(1), .options = windows(2), .says = only_1},
      {.name = "a branch of rank 1 in 16-mixed", .change = reads(1), .options = precision("16-mixed"), .says = only_1},
      {.name = "a branch of rank 0", .change = reads(0), .says = "[graph] steps are not recorded: "},
      {.name = "a number of rank 1 that changes",
       .change =
           [](RankNet& net, const at::Tensor& loss, const Batch&) {
             return net.rank() == 1 ? loss * (1.0 + 0.01 * static_cast<double>(net.hook++)) : loss;
           },
       .says = only_1},
      {.name = "a branch of rank 1 in manual optimization", .change = reads(1), .is_manual = true, .says = only_1},
      {.name = "a hook of a parameter in mid-epoch", .before_batch = from_batch(9, -1, adds_hook)},
      {.name = "a hook of rank 1's parameter in mid-epoch",
       .before_batch = from_batch(9, 1, adds_hook),
       .says = only_1},
      {.name = "a hook of rank 0's parameter in mid-epoch", .before_batch = from_batch(13, 0, adds_hook)},
      {.name = "a hook that goes again",
       .before_batch = from_batch(1, 1, adds_hook),
       .after_batch = from_batch(4, 1, removes_hook)},
      {.name = "a hook of rank 1's parameter in windows",
       .before_batch = from_batch(9, 1, adds_hook),
       .options = windows(2),
       .says = only_1},
      {.name = "gradients that hooks halve", .after_backward = in_each(-1, halve_gradients)},
      {.name = "gradients that hooks halve in windows",
       .after_backward = in_each(-1, halve_gradients),
       .options = windows(2)},
      {.name = "gradients that hooks halve before the step",
       .before_step = in_each(-1, halve_gradients),
       .options = precision("16-mixed")},
      {.name = "other gradients in their place", .after_backward = in_each(-1, put_others_in_place)},
      {.name = "other gradients in their place, in windows",
       .before_step = in_each(-1, put_others_in_place),
       .options = windows(2)},
      {.name = "a gradient that goes now and then", .after_backward = at_batches({5, 9, 14, 20, 31}, -1, clear_one)},
      {.name = "a gradient that goes before the step",
       .before_step = at_batches({5, 9, 14, 20, 31}, -1, clear_one),
       .options = clips},
      {.name = "a gradient that goes in windows",
       .before_step = at_batches({6, 9, 15, 21, 31}, -1, clear_one),
       .options = windows(2)},
      {.name = "a gradient that goes in 16-mixed",
       .before_step = at_batches({5, 9, 14, 20, 31}, -1, clear_one),
       .options = precision("16-mixed")},
      {.name = "a dropout that changes on rank 1",
       .before_batch = from_batch(10, 1, [](RankNet& net) { net.dropout->options.p(0.5); })},
      {.name = "a layer of rank 1 that evaluates",
       .before_batch = from_batch(10, 1, [](RankNet& net) { net.norm->eval(); }),
       .after_batch = from_batch(15, 1, [](RankNet& net) { net.norm->train(); })},
      {.name = "a buffer of rank 1 that is written",
       .before_batch = at_batches({7, 11, 22}, 1, [](RankNet& net) { net.table.add_(0.3); })},
      {.name = "a buffer of rank 0 that is written",
       .before_batch = at_batches({7, 11, 22}, 0, [](RankNet& net) { net.table.add_(0.3); })},
      {.name = "weights that are written",
       .before_batch = at_batches({7, 11, 22}, -1,
                                  [](RankNet& net) {
                                    const at::NoGradGuard no_grad;
                                    net.second->weight.mul_(0.5);
                                  })},
      {.name = "a layer that is frozen",
       .before_batch = from_batch(10, -1, [](RankNet& net) { net.first->weight.set_requires_grad(false); }),
       .after_batch = from_batch(16, -1, [](RankNet& net) { net.first->weight.set_requires_grad(true); })},
      {.name = "a weight of the loss",
       .change =
           [](RankNet& net, const at::Tensor& loss, const Batch& batch) {
             return loss * (batch["y"].to(at::kFloat).mean() + static_cast<double>(net.rank() + 1));
           }},
      {.name = "training that ends inside of a window",
       .options =
           [](TrainerOptions& options) {
             options.accumulate_grad_batches = 3;
             options.limit_train_batches = 11;
             options.max_steps = 7;
           }},
  };
  return variants;
}

const RankVariant& variant_of(const std::string& name) {
  static const std::vector<RankVariant> variants = rank_variants();
  return *std::find_if(variants.begin(), variants.end(), [&](const RankVariant& one) { return name == one.name; });
}

FitOutcome fit_on_ranks(const RankVariant& variant, const std::string& strategy, const TrainerOptions& ranks,
                        GraphMode graph) {
  seed_everything(11);
  const auto module = make<RankNet>({.variant = variant.name});
  TrainerOptions options = quiet(2);
  options.devices = ranks.devices;
  options.num_nodes = ranks.num_nodes;
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  if (variant.options) variant.options(options);
  options.graph = graph;
  Trainer trainer(options);
  const at::Tensor x = at::arange(variant.examples * 4, at::kFloat).reshape({variant.examples, 4}).mul(0.7).sin();
  const Batch rows{{"x", x}, {"y", at::arange(variant.examples).remainder(3)}};
  const DataLoader loader =
      variant.is_stream
          ? DataLoader(std::make_shared<TinyStream>(variant.examples, variant.examples - 30), {.batch_size = kOfRank})
          : DataLoader(std::make_shared<data::TensorDataset>(rows), {.global_batch_size = 2 * kOfRank});
  FitOutcome outcome;
  fit_into(outcome, trainer, module, loader, {});
  return outcome;
}

/// Returns what is wrong with the variants whose names have that word in them, on the rank that is this process.
/// `records` false: no rank's steps are recorded. Of ranks that are forks only the outcome is seen here.
std::string what_differs(const std::string& strategy, const TrainerOptions& ranks, bool records = true,
                         const std::string& word = "") {
  std::string wrong;
  for (const RankVariant& variant : rank_variants()) {
    if (std::string(variant.name).find(word) == std::string::npos) continue;
    FitOutcome ordinary, recorded;
    try {
      ordinary = fit_on_ranks(variant, strategy, ranks, false);
      recorded = fit_on_ranks(variant, strategy, ranks, true);
    } catch (const std::exception& error) {
      wrong += fmt::format("{}: {}: {}\n", strategy, variant.name, error.what());
      continue;
    }
    const auto expect = [&](bool is_true, const std::string& what) {
      if (!is_true) wrong += fmt::format("{}: {}: {}\n{}", strategy, variant.name, what, recorded.log);
    };
    expect(same_bits(ordinary.state, recorded.state), "other weights or buffers");
    expect(ordinary.metrics == recorded.metrics, "other metrics");
    expect(ordinary.random.equal(recorded.random), "another random state");
    if (log::rank() != 0 || strategy.find("spawn") != std::string::npos) continue;
    const std::string says = records ? variant.says : "[graph] steps are not recorded: ";
    expect(recorded.log.find(says) != std::string::npos, "not said: " + says);
    const size_t first = recorded.log.find("not recorded");
    expect(first == std::string::npos || recorded.log.find("not recorded", first + 1) == std::string::npos,
           "said more than once");
  }
  return wrong;
}

TrainerOptions two_devices() {
  TrainerOptions options;
  options.devices = 2;
  return options;
}

TEST(RecordedRanks, AsThreads) { EXPECT_EQ(what_differs("ddp_threads", two_devices()), ""); }

TEST(RecordedRanks, AsThreadsWithSmallBuckets) {
  EXPECT_EQ(
      what_differs("{name: ddp_threads, first_bucket_cap_mb: 0.0001}", two_devices(), /*records=*/true, "windows"), "");
}

TEST(RecordedRanks, AsForks) { EXPECT_EQ(what_differs("ddp_spawn", two_devices(), /*records=*/true, "rank 1"), ""); }

TEST(RecordedRanks, OfShardedThreads) {
  for (const int stage : {1, 2, 3})
    EXPECT_EQ(what_differs(fmt::format("{{name: sharded_threads, stage: {}}}", stage), two_devices(),
                           /*records=*/false, "windows"),
              "");
}

/// As a program of its own; its ranks are further runs of it, or a launcher's. Two of its nodes may be anywhere.
int run_ranks() {
  const bool has_nodes = std::getenv("LEVIN_TEST_NODES") != nullptr;
  TrainerOptions ranks = two_devices();
  if (has_nodes) {
    ranks.devices = 1;
    ranks.num_nodes = 2;
  }
  const std::string wrong = what_differs("ddp", ranks, /*records=*/!has_nodes, has_nodes ? "windows" : "");
  std::fputs(wrong.c_str(), stderr);
  return wrong.empty() ? 0 : 1;
}
const SelfProgram program_with_ranks("recorded_ranks", run_ranks);

TEST(RecordedRanks, AsProcesses) {
  const ProgramResult result = program_with_ranks.run();
  EXPECT_EQ(result.status, 0) << result.err;
}

/// Runs a program as the two ranks of a launcher: torchrun's, or one that says nothing of hosts.
std::vector<ProgramResult> launch(const SelfProgram& program, bool is_torchrun) {
  std::map<std::string, std::string> variables = {
      {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(free_port())}};
  if (is_torchrun) {
    variables["LOCAL_WORLD_SIZE"] = "2";
    variables["TORCHELASTIC_RUN_ID"] = "recorded_ranks";
  } else {
    variables["LEVIN_TEST_NODES"] = "2";
  }
  std::vector<ProgramResult> results(2);
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1})
    ranks.emplace_back([&, rank, own = variables]() mutable {
      own["RANK"] = std::to_string(rank);
      if (is_torchrun) own["LOCAL_RANK"] = std::to_string(rank);
      results[static_cast<size_t>(rank)] = program.run(own);
    });
  for (auto& rank : ranks) rank.join();
  return results;
}

TEST(RecordedRanks, OfALauncher) {
  for (const bool is_torchrun : {true, false})
    for (const ProgramResult& result : launch(program_with_ranks, is_torchrun))
      EXPECT_EQ(result.status, 0) << is_torchrun << result.err;
}

/// What the user sees of a branch of rank 1 alone.
const SelfProgram says_why("recorded_ranks_says_why", [] {
  const char* const strategy = std::getenv("LEVIN_TEST_STRATEGY");
  TrainerOptions options = quiet(1);
  options.devices = 2;
  options.strategy = Spec<Strategy>(Config::parse(strategy == nullptr ? "ddp" : strategy, {}));
  options.graph = true;
  const Batch rows{{"x", at::ones({80, 4})}, {"y", at::zeros({80}, at::kLong)}};
  Trainer(options).fit(make<RankNet>({.variant = "a branch of rank 1"}),
                       DataLoader(std::make_shared<data::TensorDataset>(rows), {.global_batch_size = 8}));
  return 0;
});

TEST(RecordedRanks, TheUserIsToldOnceWhyAnotherRanksStepsAreNotRecorded) {
  const std::string line = "[levin] warning: [graph] steps are not recorded on rank 1: aten::_local_scalar_dense";
  const auto expect_line = [&](const std::string& text) {
    const size_t first = text.find("not recorded");
    EXPECT_THAT(text, HasSubstr(line));
    EXPECT_EQ(text.find("not recorded", first + 1), std::string::npos) << text;
  };
  for (const char* strategy : {"ddp_threads", "ddp_spawn", "ddp"}) {
    SCOPED_TRACE(strategy);
    expect_line(says_why.run({{"LEVIN_TEST_STRATEGY", strategy}}).err);
  }
  const auto results = launch(says_why, /*is_torchrun=*/true);
  expect_line(results[0].err + results[1].err);
}

}  // namespace
}  // namespace levin::testing
