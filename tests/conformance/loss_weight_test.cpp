#include "tests/conformance/strategy_case.h"
#include "tests/support/captured_log.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/optim/lbfgs.h>

#include <mutex>
#include <random>
#include <set>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMostCount = 3;

/// Examples with a number "id", and a "count" of 0 to 3 that may weigh them.
Batch examples(int64_t size) {
  const auto id = at::arange(size, at::kFloat).reshape({size, 1});
  const auto x = at::arange(size * 4, at::kFloat).reshape({size, 4}).mul(0.7).sin();
  return {
      {"x", x}, {"y", x.sum(1, true) + id.mul(0.9).cos()}, {"count", id.mul(7).remainder(kMostCount + 1)}, {"id", id}};
}

class Stream : public data::IterableDataset {
 public:
  explicit Stream(int64_t size) : dataset_(examples(size)) {}
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    class Reader : public data::ExampleStream {
     public:
      Reader(const data::TensorDataset& dataset, int64_t first, int64_t stride)
          : dataset_(dataset), next_(first), stride_(stride) {}
      std::optional<Batch> next() override {
        if (next_ >= dataset_.size()) return std::nullopt;
        data::Generator generator(0, 0);
        return dataset_.get(std::exchange(next_, next_ + stride_), generator);
      }

     private:
      const data::TensorDataset& dataset_;
      int64_t next_;
      int64_t stride_;
    };
    return std::make_unique<Reader>(dataset_, context.reader, context.num_readers);
  }

 private:
  data::TensorDataset dataset_;
};

enum class Weighing { kExamples, kNumber, kTensor };

struct WeighedNetOptions {
  int64_t weighing = 0;  ///< a Weighing
  bool skips = false;    ///< parts of a batch that have an example whose number can be divided by 5
  bool notes = true;     ///< which examples it was trained on
  bool finite = false;   ///< a loss of weight zero is a number
  double wrong_weight = 0;
  bool lbfgs = false;
  static void describe(Schema<WeighedNetOptions>& schema) {
    schema.field("weighing", &WeighedNetOptions::weighing, "how losses are weighed");
    schema.field("skips", &WeighedNetOptions::skips, "skips batches");
    schema.field("notes", &WeighedNetOptions::notes, "says which examples it was trained on");
    schema.field("finite", &WeighedNetOptions::finite, "a loss of weight zero is a number");
    schema.field("wrong_weight", &WeighedNetOptions::wrong_weight, "a weight in place of the right one");
    schema.field("lbfgs", &WeighedNetOptions::lbfgs, "an optimizer that evaluates the loss itself");
  }
};

/// A regression that says which examples it was trained on.
class WeighedNet : public Module {
 public:
  using Options = WeighedNetOptions;
  explicit WeighedNet(const Options& options) : options_(options) {
    Sequential net;
    for (const auto& [in, out] : {std::pair{4, 8}, {8, 8}, {8, 8}, {8, 1}}) {
      net->push_back(Dense(in, out));
      net->push_back([](const at::Tensor& x) { return x.tanh(); });
    }
    net_ = register_module("net", net);
  }

  at::Tensor errors(const Batch& batch) { return (net_(batch["x"]) - batch["y"]).square(); }

  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor errors = this->errors(batch);
    if (options_.skips && batch["id"].remainder(5).eq(0).any().item<bool>()) return {};
    if (options_.notes) note(batch["id"]);
    if (options_.wrong_weight != 0) return StepOutput({.loss = errors.mean(), .weight = options_.wrong_weight});
    if (options_.weighing == static_cast<int64_t>(Weighing::kExamples)) return errors.mean();
    const at::Tensor count = batch["count"].sum();
    const at::Tensor loss = (errors * batch["count"]).sum() / (options_.finite ? count.clamp_min(1) : count);
    log("loss", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
    if (options_.weighing == static_cast<int64_t>(Weighing::kTensor))
      return StepOutput({.loss = loss, .weight = count.to(at::kLong)});
    if (options_.weighing == 3) return StepOutput({.loss = errors.mean(), .weight = batch["count"].numel()});
    return StepOutput({.loss = loss, .weight = count.item<double>()});
  }

  StepOutput validation_step(const Batch& batch, int64_t) override {
    const at::Tensor count = batch["count"].sum();
    const at::Tensor loss = (errors(batch) * batch["count"]).sum() / count;
    log("val_loss", loss);
    return StepOutput({.loss = loss, .weight = count});
  }

  OptimizerConfigs configure_optimizers() override {
    if (options_.lbfgs)
      return OptimizerConfig{.optimizer = std::make_shared<torch::optim::LBFGS>(
                                 parameters(), torch::optim::LBFGSOptions(0.5).max_iter(3))};
    return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.2})};
  }

  /// The examples trained on since the last call, by all ranks.
  static std::set<int64_t> trained() {
    const std::lock_guard lock(mutex());
    return std::exchange(ids(), {});
  }

 private:
  static void note(const at::Tensor& id) {
    const std::lock_guard lock(mutex());
    for (int64_t i = 0; i < id.numel(); ++i) ids().insert(id[i].item<int64_t>());
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::set<int64_t>& ids() {
    static std::set<int64_t> all;
    return all;
  }

  Options options_;
  Sequential net_{nullptr};
};

std::shared_ptr<WeighedNet> make_net(const WeighedNetOptions& options) {
  seed_everything(3);
  return make<WeighedNet>(options);
}

/// A step from one gradient over these examples, as by hand.
void step_by_hand(WeighedNet& net, const std::vector<int64_t>& ids, bool counts) {
  if (ids.empty()) return;
  const Batch all = examples(1000);
  const auto rows = at::tensor(ids, at::kLong);
  Batch batch;
  for (const auto& [name, tensor] : all.items()) batch.set(name, tensor.index_select(0, rows));
  const at::Tensor weight = counts ? batch["count"] : at::ones_like(batch["count"]);
  if (weight.sum().item<double>() == 0) return;
  net.zero_grad();
  ((net.errors(batch) * weight).sum() / weight.sum()).backward();
  const at::NoGradGuard no_grad;
  for (auto& parameter : net.parameters())
    if (parameter.grad().defined()) parameter.sub_(0.2 * parameter.grad());
}

struct Division {
  int64_t size = 20;
  int64_t batch_size = 4;
  int64_t accumulate = 3;
  bool streams = false;
  WeighedNetOptions net = {};
  std::string text(const StrategyCase& on) const {
    return fmt::format("{} examples in batches of {}, windows of {}, streams {}, weighing {}, skips {}, on {} x {}",
                       size, batch_size, accumulate, streams, net.weighing, net.skips, on.ranks, on.strategy);
  }
};

std::shared_ptr<WeighedNet> train_divided(const Division& division, const StrategyCase& on,
                                          const std::function<void(TrainerOptions&)>& configure = {},
                                          const std::string& ckpt = "") {
  const auto net = make_net(division.net);
  TrainerOptions options = trainer_options({.epochs = 1, .configure = configure}, on);
  options.accumulate_grad_batches = division.accumulate;
  Trainer trainer(options);
  const DataLoaderOptions loading{.batch_size = division.batch_size};
  WeighedNet::trained();
  if (division.streams)
    trainer.fit(net, DataLoader(std::make_shared<Stream>(division.size), loading), {}, ckpt);
  else
    trainer.fit(net, DataLoader(std::make_shared<data::TensorDataset>(examples(division.size)), loading), {}, ckpt);
  return net;
}

class LossWeight : public ::testing::TestWithParam<StrategyCase> {
 protected:
  bool shares_batches() const {
    const std::string name = GetParam().strategy;
    return name == "dp" || name == "single_device" || GetParam().is_one_pipeline();
  }
  int64_t data_ranks() const {
    if (shares_batches()) return 1;
    return GetParam().is_pipeline() ? 2 : GetParam().ranks;
  }
  /// Stage 3 gathers parameters in backward as others do, and so must know what they do.
  bool takes_skips() const { return GetParam().stage < 3; }
};

/// Any division of the same examples into batches, ranks and windows gives the gradient of one batch of them all.
TEST_P(LossWeight, AnyDivisionGivesTheGradientOfAllExamples) {
  std::mt19937 random(17);
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int trial = 0; trial < 24; ++trial) {
    Division division{.size = draw(6, 40), .batch_size = draw(1, 7)};
    division.streams = draw(0, 2) == 0;
    division.net.weighing = draw(0, 2);
    // A rank of a pipeline that ran out of data joins with other micro-batches, of which it says that they are trained
    // on.
    division.net.skips = draw(0, 3) == 0 && takes_skips() && !(division.streams && GetParam().is_pipeline());
    const int64_t batches =
        (division.size + division.batch_size * data_ranks() - 1) / (division.batch_size * data_ranks());
    division.accumulate = batches + draw(0, 2);
    division.net.finite = !takes_skips() || draw(0, 1) == 0;
    SCOPED_TRACE(division.text(GetParam()));
    const auto net = train_divided(division, GetParam());
    const auto used = WeighedNet::trained();
    const auto by_hand = make_net(division.net);
    step_by_hand(*by_hand, {used.begin(), used.end()}, division.net.weighing != 0);
    if (!division.net.skips) {
      ASSERT_EQ(std::ssize(used), division.size);
    }
    ASSERT_EQ(difference(weights(*by_hand), weights(*net), 2e-6), "");
  }
}

/// As above, in several steps: the last batch of the epoch is small, and so is its last window.
TEST_P(LossWeight, EachStepIsThatOfItsWindow) {
  for (const int64_t weighing : {0, 2})
    for (const auto& [size, batch_size, accumulate] : {std::tuple{41, 3, 2}, {37, 2, 3}, {22, 5, 1}}) {
      const Division division{.size = size,
                              .batch_size = batch_size,
                              .accumulate = accumulate,
                              .net = {.weighing = weighing, .finite = !takes_skips()}};
      SCOPED_TRACE(division.text(GetParam()));
      const auto net = train_divided(division, GetParam());
      const auto by_hand = make_net(division.net);
      const int64_t in_window = batch_size * data_ranks() * accumulate;
      for (int64_t first = 0; first < size; first += in_window) {
        std::vector<int64_t> ids;
        for (int64_t id = first; id < std::min<int64_t>(first + in_window, size); ++id) ids.push_back(id);
        step_by_hand(*by_hand, ids, weighing != 0);
      }
      ASSERT_EQ(difference(weights(*by_hand), weights(*net), 1e-5), "");
    }
}

TEST_P(LossWeight, MustBeANumberOfAtLeastZero) {
  for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    try {
      train_divided({.net = {.wrong_weight = wrong}}, GetParam());
      FAIL() << wrong << " was taken";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("the weight of a loss must be a number of at least 0"));
    }
  }
}

/// Means over an epoch, of training and validation, are those over what the losses are means of.
TEST_P(LossWeight, WeighsWhatIsLogged) {
  for (const int64_t weighing : {1, 2}) {
    SCOPED_TRACE(weighing);
    const WeighedNetOptions options{.weighing = weighing, .finite = !takes_skips()};
    const auto net = make_net(options);
    TrainerOptions quiet = trainer_options({.epochs = 1}, GetParam());
    quiet.accumulate_grad_batches = 1000;  // one step, when all is logged
    Trainer trainer(quiet);
    const DataLoader loader(std::make_shared<data::TensorDataset>(examples(23)), {.batch_size = 2});
    const auto mean_loss = [](WeighedNet& of) {
      const Batch all = examples(23);
      return ((of.errors(all) * all["count"]).sum() / all["count"].sum()).item<double>();
    };
    const double before = mean_loss(*net);
    trainer.fit(net, loader, loader);
    EXPECT_NEAR(trainer.callback_metrics().at("loss_epoch"), before, 1e-6);
    EXPECT_NEAR(trainer.callback_metrics().at("val_loss"), mean_loss(*net), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, LossWeight,
    ::testing::Values(StrategyCase{"single_device", 1}, StrategyCase{"dp", 3}, StrategyCase{"ddp_threads", 2},
                      StrategyCase{"ddp_threads", 3},
                      StrategyCase{"ddp_threads", 2, 0, "first_bucket_cap_mb: 0.0001, bucket_cap_mb: 0.0002"},
                      StrategyCase{"ddp_threads", 2, 0, "find_unused_parameters: true"},
                      StrategyCase{"ddp_threads", 2, 0, "backend: gloo"}, StrategyCase{"sharded_threads", 3, 1},
                      StrategyCase{"sharded_threads", 3, 2}, StrategyCase{"sharded_threads", 3, 3},
                      StrategyCase{"pipeline_threads", 2, 0, "schedule: gpipe, micro_batches: 3"},
                      StrategyCase{"pipeline_threads", 2, 0, "schedule: 1f1b, micro_batches: 1"},
                      StrategyCase{"pipeline_threads", 2, 0, "schedule: zero_bubble, micro_batches: 2"},
                      StrategyCase{"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
                      StrategyCase{"parameter_server_threads", 3, 0, "servers: 2"}),
    name_of);

TEST(LossesOfEqualWeight, AreThoseOfAllBatchesAndRanks) {
  const auto train_alike = [](const Division& division, const StrategyCase& on) {
    return train_divided(division, on, [](TrainerOptions& options) { options.weigh_losses = false; });
  };
  const auto step_by_means = [](const std::vector<std::pair<int64_t, int64_t>>& batches) {
    const auto net = make_net({});
    const Batch all = examples(13);
    for (const auto& [from, to] : batches) {
      Batch batch;
      for (const auto& [name, tensor] : all.items()) batch.set(name, tensor.slice(0, from, to));
      (net->errors(batch).mean() / static_cast<double>(batches.size())).backward();
    }
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.sub_(0.2 * parameter.grad());
    return weights(*net);
  };
  const auto one = train_alike({.size = 13, .batch_size = 5, .accumulate = 3}, {"single_device", 1});
  EXPECT_EQ(difference(step_by_means({{0, 5}, {5, 10}, {10, 13}}), weights(*one), 2e-6), "");
  const auto two = train_alike({.size = 13, .batch_size = 5, .accumulate = 2}, {"ddp_threads", 2});
  EXPECT_EQ(difference(step_by_means({{0, 5}, {5, 10}, {10, 12}, {12, 13}}), weights(*two), 2e-6), "");
}

/// Recorded steps weigh as ordinary ones do, whatever each batch weighs.
TEST(RecordedLossWeight, IsThatOfOrdinarySteps) {
  for (const StrategyCase& on : {StrategyCase{"single_device", 1}, StrategyCase{"ddp_threads", 2}})
    for (const int64_t weighing : {0, 2})
      for (const int64_t accumulate : {1, 3}) {
        // The last batch is small, and so are the last window and its quotients.
        const Division division{.size = 203,
                                .batch_size = 4,
                                .accumulate = accumulate,
                                .net = {.weighing = weighing, .notes = false, .finite = true}};
        SCOPED_TRACE(division.text(on));
        const auto train_with = [&](bool graph) {
          return train_divided(division, on, [graph](TrainerOptions& options) {
            options.graph = graph;
            options.max_epochs = 6;
          });
        };
        CapturedLog log;
        const auto recorded = train_with(true);
        EXPECT_THAT(log.text(), HasSubstr("recorded the step"));
        EXPECT_THAT(log.text(), ::testing::Not(HasSubstr("not recorded")));
        EXPECT_EQ(difference(weights(*train_with(false)), weights(*recorded), 0), "");
      }
}

TEST(RecordedLossWeight, IsATensorOrOneForAll) {
  for (const bool graph : {false, true}) {
    // Each batch alike, whatever it holds.
    const Division alike{.size = 203, .batch_size = 4, .accumulate = 3, .net = {.notes = false}};
    static std::vector<at::Tensor> first;
    const auto net = train_divided(alike, {"single_device", 1}, [graph](TrainerOptions& options) {
      options.graph = graph;
      options.weigh_losses = false;
      options.max_epochs = 4;
    });
    if (graph) EXPECT_EQ(difference(first, weights(*net), 0), "");
    first = weights(*net);
  }
  // A number would be that of the recorded batch.
  CapturedLog log;
  train_divided({.size = 203, .net = {.weighing = 3, .notes = false}}, {"single_device", 1},
                [](TrainerOptions& options) {
                  options.graph = true;
                  options.max_epochs = 4;
                });
  EXPECT_THAT(log.text(), HasSubstr("gave the loss's weight as a number"));
}

/// A run that is stopped within a window goes on with the weight of what it has added up.
TEST(ResumedLossWeight, IsThatOfTheWholeWindow) {
  for (const StrategyCase& on : {StrategyCase{"single_device", 1}, StrategyCase{"ddp_threads", 2}})
    for (const int64_t weighing : {0, 2})
      for (const bool streams : {false, true})
        for (const int64_t stop_after : {1, 2, 3}) {
          const Division division{
              .size = 22, .batch_size = 3, .accumulate = 3, .streams = streams, .net = {.weighing = weighing}};
          SCOPED_TRACE(division.text(on) + fmt::format(", stopped after {}", stop_after));
          const auto whole = train_divided(division, on);
          const std::string path = fresh_folder("resumed_weight") + "/c";
          train_divided(division, on, [&](TrainerOptions& options) {
            options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                .on_train_batch_end = [&path, stop_after](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                                          int64_t) {
                  if (trainer.total_batches() + 1 != stop_after) return;
                  trainer.save_checkpoint(path);
                  trainer.request_stop("the test resumes here");
                }}));
          });
          const auto resumed = train_divided(division, on, {}, path);
          EXPECT_EQ(difference(weights(*whole), weights(*resumed), 0), "");
        }
}

/// An optimizer that evaluates the loss itself sees that of all ranks' examples.
TEST(LossWeightOfClosures, TheLossIsThatOfAllRanks) {
  for (const int64_t weighing : {0, 1, 2}) {
    Division division{.size = 12, .batch_size = 12, .accumulate = 1, .net = {.weighing = weighing, .lbfgs = true}};
    const auto one = train_divided(division, {"single_device", 1});
    division.batch_size = 6;
    const auto two = train_divided(division, {"ddp_threads", 2});
    EXPECT_EQ(difference(weights(*one), weights(*two), 1e-4), "") << weighing;
  }
}

}  // namespace
}  // namespace levin::testing
