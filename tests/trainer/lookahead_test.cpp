// Loaders that do not look ahead: data that use the weights of the module that is trained.

#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::weights;

/// Numbers of one reader; `length` of them for reader 0, and one less for each reader after it. `look` is called for
/// every number, and gives what a batch has as "seen".
class Numbers : public data::IterableDataset {
 public:
  Numbers(int64_t length, std::function<double()> look) : length_(length), look_(std::move(look)) {}
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    return std::make_unique<Stream>(*this, context.reader);
  }

 private:
  class Stream : public data::ExampleStream {
   public:
    Stream(const Numbers& owner, int64_t reader) : owner_(owner), reader_(reader) {}
    std::optional<Batch> next() override {
      if (next_ >= owner_.length_ - reader_) return std::nullopt;
      const double number = std::cos(static_cast<double>(10 * reader_ + next_++));
      return Batch{{"x", at::tensor(number, at::kDouble)}, {"seen", at::tensor(owner_.look_(), at::kDouble)}};
    }
    void skip(int64_t count) override { next_ += count; }

   private:
    const Numbers& owner_;
    const int64_t reader_;
    int64_t next_ = 0;
  };

  const int64_t length_;
  const std::function<double()> look_;
};

struct PolicyOptions {
  int64_t length = 7;
  int64_t examples = 2;  ///< in a batch
  bool lookahead = false;
  bool manual = false;
  bool is_sized = false;
  bool learns_from_itself = false;  ///< trains on the weight that the stream has seen
  static void describe(Schema<PolicyOptions>& schema) {
    schema.field("length", &PolicyOptions::length, "numbers of reader 0");
    schema.field("examples", &PolicyOptions::examples, "in a batch");
    schema.field("lookahead", &PolicyOptions::lookahead, "of the loader");
    schema.field("manual", &PolicyOptions::manual, "optimization");
    schema.field("is_sized", &PolicyOptions::is_sized, "has a data set of known size");
    schema.field("learns_from_itself", &PolicyOptions::learns_from_itself, "trains on the weight that was seen");
  }
};

/// One weight, which its data look at.
class Policy : public Module {
 public:
  using Options = PolicyOptions;
  explicit Policy(const Options& options) : options_(options) {
    automatic_optimization = !options.manual;
    weight_ = register_parameter("weight", at::zeros({}, at::kDouble));
  }

  DataLoader train_dataloader() override {
    const DataLoaderOptions loader{.batch_size = options_.examples, .lookahead = options_.lookahead};
    if (options_.is_sized)
      return DataLoader(
          std::make_shared<data::TensorDataset>(Batch{{"x", at::arange(options_.length, at::kDouble).cos()},
                                                      {"seen", at::zeros({options_.length}, at::kDouble)}}),
          loader);
    return DataLoader(std::make_shared<Numbers>(options_.length, [this] { return weight_.item<double>(); }), loader);
  }

  StepOutput training_step(const Batch& batch, int64_t) override {
    stale.push_back(!trainer().is_joining() && !batch["seen"].eq(weight_.detach()).all().item<bool>());
    const at::Tensor target = batch["x"] + (options_.learns_from_itself ? batch["seen"] * 0.5 : batch["x"]) + 3;
    const at::Tensor loss = (weight_ - target).square().mean();
    if (!options_.manual) return loss;
    optimizer().zero_grad();
    manual_backward(loss);
    optimizer().step();
    return loss;
  }
  StepOutput validation_step(const Batch&, int64_t) override { return {}; }
  DataLoaders val_dataloader() override { return {testing::tiny_loader(8)}; }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})};
  }

  std::vector<bool> stale;  ///< by batch: it was made with another weight than this step's

 private:
  Options options_;
  at::Tensor weight_;
};

/// What rank 0 sees of a fit, in order.
struct Journal {
  std::vector<std::string> lines;

  std::shared_ptr<Callback> callback() {
    const auto note = [this](Trainer& trainer, const std::string& what) {
      if (trainer.is_global_zero())
        lines.push_back(fmt::format("{} batch {} step {}{}", what, trainer.batch_idx(), trainer.global_step(),
                                    trainer.epoch_complete() ? " complete" : ""));
    };
    return make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_epoch_end = [note](Trainer& trainer, Module&) { note(trainer, "epoch"); },
        .on_train_batch_start = [note](Trainer& trainer, Module&, const Batch&, int64_t) { note(trainer, "start"); },
        .on_train_batch_end = [note](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                     int64_t) { note(trainer, "end"); },
        .on_validation_epoch_end = [note](Trainer& trainer, Module&) { note(trainer, "validation"); }});
  }
};

TrainerOptions precise(int64_t epochs) {
  TrainerOptions options = quiet(epochs);
  options.precision = "64-true";
  return options;
}

struct Case {
  std::string name;
  std::string strategy = "single_device";
  PolicyOptions policy = {};
  int64_t accumulate = 1;
  BatchLimit limit = {};
  CheckInterval check = {};
};

TrainerOptions options_for(const Case& one) {
  TrainerOptions options = precise(2);
  options.strategy = one.strategy;
  options.devices = one.strategy == "single_device" ? 1 : 2;
  options.accumulate_grad_batches = one.accumulate;
  options.limit_train_batches = one.limit;
  options.val_check_interval = one.check;
  return options;
}

class Lookahead : public ::testing::TestWithParam<Case> {};

TEST_P(Lookahead, WithoutItAllElseStays) {
  std::vector<std::string> lines[2];
  std::vector<at::Tensor> trained[2];
  for (const bool lookahead : {false, true}) {
    Journal journal;
    TrainerOptions options = options_for(GetParam());
    options.callbacks = {journal.callback()};
    PolicyOptions policy = GetParam().policy;
    policy.lookahead = lookahead;
    const auto module = make<Policy>(policy);
    Trainer trainer(options);
    trainer.fit(module);
    lines[lookahead] = journal.lines;
    trained[lookahead] = weights(*module);
    const bool is_stale = std::find(module->stale.begin(), module->stale.end(), true) != module->stale.end();
    const bool has_several_batches = module->stale.size() > 2;  // of two epochs
    if (!policy.is_sized) EXPECT_EQ(is_stale, lookahead && has_several_batches);
  }
  EXPECT_FALSE(lines[0].empty());
  EXPECT_EQ(lines[0], lines[1]);
  EXPECT_TRUE(identical(trained[0], trained[1]));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Lookahead,
    ::testing::Values(Case{.name = "one"}, Case{.name = "last_batch_is_full", .policy = {.length = 6}},
                      Case{.name = "one_batch", .policy = {.length = 2}},
                      Case{.name = "window_is_cut", .policy = {.length = 9}, .accumulate = 3},
                      Case{.name = "window_ends", .policy = {.length = 12}, .accumulate = 3},
                      Case{.name = "limited", .accumulate = 2, .limit = 3},
                      Case{.name = "limited_beyond_the_end", .limit = 30},
                      Case{.name = "validates_inside", .policy = {.length = 9}, .check = 2},
                      Case{.name = "manual", .policy = {.manual = true}},
                      Case{.name = "sized", .policy = {.is_sized = true}, .accumulate = 2},
                      Case{.name = "ranks", .strategy = "ddp_threads"},
                      Case{.name = "ranks_of_unlike_length", .strategy = "ddp_threads", .policy = {.examples = 1}},
                      Case{.name = "ranks_whose_window_is_cut",
                           .strategy = "ddp_threads",
                           .policy = {.length = 7, .examples = 1},
                           .accumulate = 3},
                      Case{.name = "ranks_limited",
                           .strategy = "ddp_threads",
                           .policy = {.examples = 1},
                           .accumulate = 2,
                           .limit = 3,
                           .check = 2},
                      Case{.name = "ranks_manual", .strategy = "ddp_threads", .policy = {.manual = true}},
                      Case{
                          .name = "ranks_sized", .strategy = "ddp_threads", .policy = {.length = 5, .is_sized = true}}),
    [](const auto& info) { return info.param.name; });

/// By the arithmetic of one weight: w' = w - 0.1 * 2 * mean(w - target), each target made with the weight of its step.
TEST(LookaheadValues, TheStreamSeesTheWeightsOfTheStep) {
  TrainerOptions options = precise(1);
  const auto module = make<Policy>({.length = 5, .examples = 1, .learns_from_itself = true});
  Trainer trainer(options);
  trainer.fit(module);
  double weight = 0;
  for (int i = 0; i < 5; ++i) weight -= 0.1 * 2 * (weight - (std::cos(i) + 0.5 * weight + 3));
  EXPECT_NEAR(module->parameters().front().item<double>(), weight, 1e-12);
  EXPECT_EQ(module->stale, std::vector<bool>(5, false));
}

/// Saved behind every batch, a run goes on as the one that was not interrupted.
TEST(LookaheadValues, AResumedRunGoesOnWithTheSame) {
  for (const int64_t accumulate : {1, 2}) {
    for (int64_t saved_at = 1; saved_at <= 7; ++saved_at) {
      const PolicyOptions policy{.length = 7, .examples = 1, .learns_from_itself = true};
      const std::string path = fresh_folder("lookahead") + "/checkpoint";
      TrainerOptions options = precise(1);
      options.accumulate_grad_batches = accumulate;
      TrainerOptions saving = options;
      saving.callbacks = {make<LambdaCallback>(
          LambdaCallbackOptions{.on_train_batch_end = [path, saved_at](Trainer& trainer, Module&, const StepOutput&,
                                                                       const Batch&, int64_t batch_idx) {
            if (batch_idx + 1 == saved_at) trainer.save_checkpoint(path);
          }})};
      const auto whole = make<Policy>(policy);
      Trainer(saving).fit(whole);
      const auto resumed = make<Policy>(policy);
      Trainer(options).fit(resumed, std::shared_ptr<DataModule>(), path);
      EXPECT_TRUE(identical(weights(*resumed), weights(*whole))) << accumulate << ", after batch " << saved_at;
      EXPECT_EQ(std::find(resumed->stale.begin(), resumed->stale.end(), true), resumed->stale.end());
    }
  }
}

/// A data set of known size, of which the CPU that trains reads each batch itself, after all of the one before it.
TEST(LookaheadValues, BatchesOfASizedDataSetAreReadOneByOne) {
  class Told : public data::Dataset {
   public:
    explicit Told(std::vector<std::string>& lines) : lines_(lines) {}
    int64_t size() const override { return 5; }
    Batch get_batch(std::span<const int64_t> indices, data::Generator&) const override {
      lines_.push_back(fmt::format("read {}", indices.front()));
      const auto count = static_cast<int64_t>(indices.size());
      return {{"x", at::ones({count}, at::kDouble)}, {"seen", at::zeros({count}, at::kDouble)}};
    }

   private:
    std::vector<std::string>& lines_;
  };
  for (const int64_t accumulate : {1, 2}) {
    Journal journal;
    TrainerOptions options = precise(1);
    options.accumulate_grad_batches = accumulate;
    options.callbacks = {journal.callback()};
    Trainer(options).fit(make<Policy>({}), DataLoader(std::make_shared<Told>(journal.lines), {.batch_size = 2}));
    for (std::string& line : journal.lines) line.resize(std::min(line.size(), line.find(" step")));
    EXPECT_EQ(journal.lines, (std::vector<std::string>{"read 0", "start batch 0", "end batch 0", "read 2",
                                                       "start batch 1", "end batch 1", "read 4", "start batch 2",
                                                       "end batch 2", "validation batch 3", "epoch batch 3"}));
  }
}

TEST(LookaheadValues, WorkersAreRefused) {
  const auto numbers = std::make_shared<Numbers>(3, [] { return 0.0; });
  try {
    DataLoader(numbers, {.num_workers = 2, .lookahead = false});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("lookahead: false fetches each batch when it is needed, which workers cannot; "
                                        "got num_workers 2; valid: 0"));
  }
  const DataLoader loader(numbers, {.lookahead = false});
  EXPECT_FALSE(loader.looks_ahead());
  EXPECT_FALSE(loader.copy().looks_ahead());
  EXPECT_TRUE(loader.with_num_workers(2).looks_ahead());
  EXPECT_FALSE(
      DataLoader::combined({{"a", testing::tiny_loader()}, {"b", loader}}, CombinedMode::kMinSize).looks_ahead());
  EXPECT_TRUE(DataLoader::combined({{"a", testing::tiny_loader()}}).looks_ahead());
}

}  // namespace
}  // namespace levin
