#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/optim/sparse_adam.h>

#include "tests/support/tiny.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/embedding.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 30;
constexpr int64_t kColumns = 4;

struct TableOptions {
  bool sparse = true;
  /// Or "bag", "functional", "tied" (the head's weight is the table), "sequential" (which a pipeline can cut).
  std::string kind = "embedding";
  std::string optimizer = "sgd";
  double momentum = 0;
  bool manual = false;
  bool weighs = false;   ///< the loss, by a number that differs from batch to batch
  int64_t skipped = -1;  ///< batch that rank 1 skips
  static void describe(Schema<TableOptions>& schema) {
    using O = TableOptions;
    schema.field("sparse", &O::sparse, "sparse gradients");
    schema.field("kind", &O::kind, "of the table");
    schema.field("optimizer", &O::optimizer, "of all parameters");
    schema.field("momentum", &O::momentum, "of sgd");
    schema.field("manual", &O::manual, "manual optimization");
    schema.field("weighs", &O::weighs, "weigh losses");
    schema.field("skipped", &O::skipped, "batch that rank 1 skips");
  }
};

/// Three rows of a table for each example, and a head.
class Table : public Module {
 public:
  using Options = TableOptions;
  explicit Table(const Options& options) : options_(options) {
    automatic_optimization = !options.manual;
    const auto table = torch::nn::EmbeddingOptions(kRows, kColumns).sparse(options.sparse);
    if (options.kind == "sequential") {
      net_ =
          register_module("net", Sequential(
                                     torch::nn::Embedding(table), [](const at::Tensor& x) { return x.sum(1).tanh(); },
                                     torch::nn::Linear(kColumns, 8), torch::nn::Linear(8, 1)));
      return;
    }
    if (options.kind == "bag")
      bag_ = register_module(
          "bag", torch::nn::EmbeddingBag(
                     torch::nn::EmbeddingBagOptions(kRows, kColumns).mode(torch::kSum).sparse(options.sparse)));
    else if (options.kind == "functional")
      weight_ = register_parameter("weight", at::randn({kRows, kColumns}));
    else
      embedding_ = register_module("embedding", torch::nn::Embedding(table));
    if (options.kind != "tied" && options.optimizer != "sparse_adam")
      head_ = register_module("head", torch::nn::Linear(kColumns, 1));
  }

  at::Tensor forward(const at::Tensor& rows) {
    namespace F = torch::nn::functional;
    at::Tensor x;
    if (net_) return net_(rows);
    if (bag_)
      x = bag_(rows);
    else if (weight_.defined())
      x = F::embedding(rows, weight_, F::EmbeddingFuncOptions().sparse(options_.sparse)).sum(1);
    else
      x = embedding_(rows).sum(1);
    if (options_.kind == "tied") return x.tanh().matmul(embedding_->weight.t()).mean(1, true);
    return head_ ? head_(x.tanh()) : x.tanh().sum(1, true);
  }

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (batch_idx == options_.skipped && trainer().global_rank() == 1) return {};
    const at::Tensor loss = torch::nn::functional::mse_loss(forward(batch["rows"]), batch["y"]);
    if (options_.manual) {
      optimizer().zero_grad();
      manual_backward(loss);
      optimizer().step();
      return {};
    }
    if (options_.weighs) return StepOutput({.loss = loss, .weight = static_cast<double>(1 + batch_idx % 3)});
    return loss;
  }

  OptimizerConfigs configure_optimizers() override {
    if (options_.optimizer == "adagrad")
      return std::make_shared<optim::Adagrad>(parameters(), optim::AdagradOptions{.lr = 0.1});
    if (options_.optimizer == "sparse_adam")
      return std::make_shared<optim::SparseAdam>(parameters(), optim::SparseAdamOptions{.lr = 0.05});
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.2, .momentum = options_.momentum});
  }

 private:
  Options options_;
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::EmbeddingBag bag_{nullptr};
  at::Tensor weight_;
  torch::nn::Linear head_{nullptr};
  Sequential net_{nullptr};
};

std::shared_ptr<data::TensorDataset> table_examples(int64_t count) {
  // Few rows an example, and some of the table in none.
  const at::Tensor rows =
      at::randint(0, kRows - 5, {count, 3}, at::detail::createCPUGenerator(5), at::TensorOptions().dtype(at::kLong));
  return std::make_shared<data::TensorDataset>(Batch{{"rows", rows}, {"y", rows.to(at::kFloat).mean(1, true).sin()}});
}

struct TableRun {
  TableOptions table = {};
  std::string strategy = "single_device";
  int64_t devices = 1;
  int64_t count = 48;
  std::function<void(TrainerOptions&)> change = {};
  std::string ckpt = {};
};

std::vector<at::Tensor> train_table(const TableRun& run) {
  seed_everything(3);
  const auto module = make<Table>(run.table);
  TrainerOptions options = quiet(3);
  options.devices = run.devices;
  options.strategy = Spec<Strategy>(Config::parse(run.strategy, {}));
  if (run.change) run.change(options);
  Trainer trainer(options);
  trainer.fit(module, DataLoader(table_examples(run.count), {.shuffle = true, .global_batch_size = 12}), {}, run.ckpt);
  return weights(*module);
}

/// Sparse gradients train as dense ones do, up to the order of sums.
void expect_table_as_dense(TableRun run, double bound = 1e-5) {
  const std::string what =
      run.strategy + " on " + std::to_string(run.devices) + ", " + run.table.kind + ", " + run.table.optimizer;
  run.table.sparse = true;
  const auto sparse = train_table(run);
  run.table.sparse = false;
  const auto dense = train_table(run);
  ASSERT_EQ(sparse.size(), dense.size());
  seed_everything(3);
  const auto initial = weights(*make<Table>(run.table));
  for (size_t i = 0; i < dense.size(); ++i) {
    EXPECT_TRUE(at::allclose(sparse[i], dense[i], bound, bound)) << what << ", tensor " << i;
    EXPECT_FALSE(dense[i].equal(initial[i])) << what << ", tensor " << i;
  }
}

struct TableDevices {
  std::string strategy;
  int64_t devices;
};

const std::vector<TableDevices>& every_strategy() {
  static const std::vector<TableDevices> kAll = {
      {"single_device", 1},
      {"dp", 2},
      {"ddp_threads", 2},
      {"ddp_threads", 3},
      {"{name: ddp_threads, first_bucket_cap_mb: 0.00001}", 2},
      {"{name: ddp_threads, backend: gloo}", 2},
      {"ddp_spawn", 2},
      {"{name: ddp_spawn, backend: gloo}", 2},
      {"{name: ddp_threads, find_unused_parameters: true}", 2},
      {"{name: ddp_threads, static_graph: true}", 2},
      {"{name: sharded_threads, stage: 1}", 2},
      {"{name: sharded_threads, stage: 2}", 2},
      {"{name: sharded_threads, stage: 3}", 2},
      {"{name: parameter_server_spawn, servers: 1}", 2},
  };
  return kAll;
}

class SparseGradientTrainings : public ::testing::TestWithParam<TableDevices> {
 protected:
  static TableRun run(TableOptions table = {}, const std::function<void(TrainerOptions&)>& change = {}) {
    return {
        .table = std::move(table), .strategy = GetParam().strategy, .devices = GetParam().devices, .change = change};
  }
};

TEST_P(SparseGradientTrainings, IsThatWithDenseOnes) {
  for (const char* kind : {"embedding", "bag"}) expect_table_as_dense(run({.kind = kind}));
  expect_table_as_dense(run({.optimizer = "adagrad"}));
}

TEST_P(SparseGradientTrainings, AddsUpBatchesOfAWindow) {
  expect_table_as_dense(run({}, [](TrainerOptions& options) { options.accumulate_grad_batches = 3; }));
}

TEST_P(SparseGradientTrainings, ClipsByNormAndValue) {
  expect_table_as_dense(run({}, [](TrainerOptions& options) { options.gradient_clip_val = 0.1; }));
  expect_table_as_dense(run({}, [](TrainerOptions& options) {
    options.gradient_clip_val = 0.02;
    options.gradient_clip_algorithm = "value";
  }));
}

TEST_P(SparseGradientTrainings, ComputesIn16Bits) {
  if (GetParam().strategy == "dp") return;  // takes whole precision alone
  for (const char* precision : {"bf16-mixed", "16-mixed"})
    expect_table_as_dense(run({}, [&](TrainerOptions& options) { options.precision = precision; }), 2e-2);
}

TEST_P(SparseGradientTrainings, WeighsLosses) {
  if (GetParam().strategy == "dp") return;  // a loss of a replica's part has no weight of its own
  expect_table_as_dense(run({.weighs = true}, [](TrainerOptions& options) { options.accumulate_grad_batches = 2; }));
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, SparseGradientTrainings, ::testing::ValuesIn(every_strategy()));

TEST(SparseGradientTraining, OfAParameterWithoutAModuleIsDenseOrRefused) {
  const TableOptions table{.kind = "functional"};
  for (const char* strategy : {"single_device", "dp", "ddp_threads", "{name: sharded_threads, stage: 1}"})
    expect_table_as_dense(
        {.table = table, .strategy = strategy, .devices = strategy == std::string("single_device") ? 1 : 2});
  for (const char* strategy : {"{name: ddp_threads, backend: gloo}", "{name: ddp_spawn, backend: gloo}"}) try {
      train_table({.table = table, .strategy = strategy, .devices = 2});
      ADD_FAILURE() << strategy;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the gradient of 'weight' is sparse")) << strategy;
    }
}

TEST(SparseGradientTraining, IsThatWithDenseOnesInAPipeline) {
  for (const char* options : {"schedule: 1f1b", "schedule: gpipe", "schedule: zero_bubble"})
    expect_table_as_dense({.table = {.kind = "sequential"},
                           .strategy = std::string("{name: pipeline_threads, micro_batches: 2, ") + options + "}",
                           .devices = 2});
  for (const char* options : {"", ", shard_optimizer: true"})
    expect_table_as_dense(
        {.table = {.kind = "sequential"},
         .strategy = std::string("{name: pipeline_threads, data_parallel: 2, micro_batches: 2") + options + "}",
         .devices = 4});
}

class SparseGradientsOfRanks : public ::testing::TestWithParam<TableDevices> {
 protected:
  static TableRun run(TableOptions table = {}, const std::function<void(TrainerOptions&)>& change = {}) {
    return {
        .table = std::move(table), .strategy = GetParam().strategy, .devices = GetParam().devices, .change = change};
  }
};

TEST_P(SparseGradientsOfRanks, AreThoseOfOneRank) {
  for (const char* optimizer : {"sgd", "adagrad", "sparse_adam"}) {
    const auto ranks = train_table(run({.optimizer = optimizer}));
    const auto alone = train_table({.table = {.optimizer = optimizer}});
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(at::allclose(ranks[i], alone[i], 1e-4, 1e-5)) << optimizer << ", tensor " << i;
  }
}

TEST_P(SparseGradientsOfRanks, MayBeThoseOfSomeRanksAlone) {
  // Ranks have unequal numbers of batches, and one skips one.
  TableRun uneven = run();
  uneven.count = 41;
  expect_table_as_dense(uneven);
  expect_table_as_dense(run({.skipped = 1}));
}

TEST_P(SparseGradientsOfRanks, AreCombinedInManualOptimization) { expect_table_as_dense(run({.manual = true})); }

TEST_P(SparseGradientsOfRanks, AreDenseWhereTheHeadHasTheSameWeights) { expect_table_as_dense(run({.kind = "tied"})); }

TEST_P(SparseGradientsOfRanks, DoNotKeepStepsFromBeingTakenWithGraph) {
  const auto with_graph = [](TrainerOptions& options) { options.graph = true; };
  const auto plain = train_table(run());
  const auto recorded = train_table(run({}, with_graph));
  EXPECT_TRUE(identical(plain, recorded));
  EXPECT_TRUE(identical(train_table(run({.manual = true})), train_table(run({.manual = true}, with_graph))));
}

TEST_P(SparseGradientsOfRanks, AreSeenByMonitors) {
  if (GetParam().strategy == "ddp_spawn") return;  // what the callback below collects stays in the ranks
  const auto train_watched = [&](bool sparse, std::vector<double>& norms) {
    train_table(run({.sparse = sparse}, [&](TrainerOptions& options) {
      options.log_every_n_steps = 1;
      options.callbacks.emplace_back(Config::parse("{gradient_norm_monitor: {per_parameter: true}}", {}));
      options.callbacks.emplace_back(Config::parse("nan_monitor", {}));
      options.callbacks.emplace_back(make<LambdaCallback>(
          {.on_train_batch_end = [&norms](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
            if (trainer.is_global_zero()) norms.push_back(trainer.callback_metrics().at("grad_norm/embedding.weight"));
          }}));
    }));
  };
  std::vector<double> sparse, dense;
  train_watched(true, sparse);
  train_watched(false, dense);
  ASSERT_EQ(sparse.size(), dense.size());
  ASSERT_FALSE(dense.empty());
  for (size_t i = 0; i < dense.size(); ++i) EXPECT_NEAR(sparse[i], dense[i], 1e-5);
}

TEST_P(SparseGradientsOfRanks, AreLookedAtForAnomalies) {
  expect_table_as_dense(run({}, [](TrainerOptions& options) { options.detect_anomaly = true; }));
}

TEST_P(SparseGradientsOfRanks, TravelWholeBesideCompressedOnes) {
  if (GetParam().devices == 1) return;
  TableRun compressed = run();
  compressed.strategy = "{name: ddp_threads, gradient_compression: bf16}";
  expect_table_as_dense(compressed, 2e-2);
}

TEST_P(SparseGradientsOfRanks, OfAWindowAreSavedAndRestored) {
  for (const char* optimizer : {"sgd", "sparse_adam"}) {
    const std::string folder = fresh_folder("sparse_window");
    const auto in_windows = [](TrainerOptions& options) { options.accumulate_grad_batches = 3; };
    const auto whole = train_table(run({.optimizer = optimizer}, in_windows));
    TableRun saving = run({.optimizer = optimizer}, [&](TrainerOptions& options) {
      in_windows(options);
      options.callbacks.emplace_back(make<LambdaCallback>(
          {.on_train_batch_end = [folder](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
            trainer.save_checkpoint(folder + "/" + std::to_string(trainer.current_epoch() * 10 + batch));
          }}));
    });
    EXPECT_TRUE(identical(train_table(saving), whole)) << "saving changed the run";
    for (const char* batch : {"0", "1", "10", "12"}) {
      TableRun resumed = run({.optimizer = optimizer}, in_windows);
      resumed.ckpt = folder + "/" + batch;
      const auto after = train_table(resumed);
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(at::allclose(after[i], whole[i], 1e-6, 1e-7)) << optimizer << ", batch " << batch;
    }
  }
}

TEST_P(SparseGradientsOfRanks, AreRefusedByTheNameOfTheParameter) {
  const auto refusal = [&](const TableOptions& table, const std::string& strategy) {
    TableRun refused = run(table);
    if (!strategy.empty()) refused.strategy = strategy;
    try {
      train_table(refused);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string momentum = refusal({.momentum = 0.9}, "");
  EXPECT_THAT(momentum, HasSubstr("the gradient of 'embedding.weight' is sparse"));
  EXPECT_THAT(momentum, HasSubstr("sgd without momentum and weight_decay"));
  EXPECT_THAT(refusal({.sparse = false, .optimizer = "sparse_adam"}, ""),
              HasSubstr("the gradient of 'embedding.weight' is dense"));
  if (GetParam().devices == 1) return;
  EXPECT_THAT(refusal({.optimizer = "sparse_adam"}, "sharded_threads"),
              HasSubstr("'sharded_threads' gives each rank a part of the parameters"));
}

INSTANTIATE_TEST_SUITE_P(OnRanks, SparseGradientsOfRanks,
                         ::testing::Values(TableDevices{"single_device", 1}, TableDevices{"ddp_threads", 2},
                                           TableDevices{"ddp_threads", 3},
                                           TableDevices{"{name: ddp_threads, first_bucket_cap_mb: 0.00001}", 2},
                                           TableDevices{"{name: ddp_threads, backend: gloo}", 2},
                                           TableDevices{"ddp_spawn", 2}));

}  // namespace
}  // namespace levin::testing
