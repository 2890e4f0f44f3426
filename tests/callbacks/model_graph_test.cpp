#include <levin/callbacks/model_graph.h>

#include "../support/captured_log.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "tests/support/tree.h"

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/nn/sequential.h>
#include <levin/loggers/csv_logger.h>
#include <levin/loggers/tensorboard_logger.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

using Json = nlohmann::json;

/// What TensorBoard's own reader finds in a folder of event files.
Json read_back(const std::string& folder) {
  const auto read = run_program({torch_python(), source_path("tests/loggers/read_events.py"), folder});
  EXPECT_EQ(read.status, 0) << read.err;
  return Json::parse(read.out, nullptr, false);
}

class Drawn : public TinyModule {
 public:
  explicit Drawn(const Options& options) : TinyModule(options) {
    net_ = register_module("net", Sequential(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3), torch::nn::ReLU()));
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    return TinyModule::training_step({{"x", with_net(batch["x"])}, {"y", batch["y"]}}, batch_idx);
  }
  Batch predict_step(const Batch& batch, int64_t) override {
    EXPECT_FALSE(is_training());
    return {{"y", forward(with_net(batch["x"]))}, {"sum", batch["x"].sum(1)}};
  }

 private:
  at::Tensor with_net(const at::Tensor& x) { return x + net_(x).sum(1, true); }
  Sequential net_{nullptr};
};

TrainerOptions drawing(const std::string& root, const std::shared_ptr<Logger>& logger) {
  TrainerOptions options = quiet(2);
  options.default_root_dir = root;
  options.logger = {logger};
  return options;
}

TEST(ModelGraph, TensorBoardReadsItBack) {
  Trainer trainer(drawing(fresh_folder("graph"), make<TensorBoardLogger>({.log_graph = true})));
  trainer.fit(make<Drawn>({}), tiny_loader(16), tiny_loader(8, 8, false));
  const Json found = read_back(trainer.run_directory());
  std::map<std::string, Json> nodes;
  for (const Json& node : found.at("graph")) {
    EXPECT_TRUE(nodes.emplace(node.at("name"), node).second) << node << " is there twice";
    for (const std::string input : node.at("inputs")) EXPECT_TRUE(nodes.contains(input)) << node << " reads " << input;
  }
  using Names = std::vector<std::string>;
  const auto inputs = [&](const std::string& name) {
    if (nodes.contains(name)) return nodes[name].at("inputs").get<Names>();
    ADD_FAILURE() << name << " is none of " << found.at("graph");
    return Names();
  };
  EXPECT_EQ(inputs("net/0/t"), (Names{"net/0/weight"}));
  EXPECT_EQ(inputs("net/0/addmm"), (Names{"net/0/bias", "input/x", "net/0/t"})) << "a linear layer, as LibTorch has it";
  EXPECT_EQ(inputs("net/1/batch_norm"),
            (Names{"net/0/addmm", "net/1/weight", "net/1/bias", "net/1/running_mean", "net/1/running_var"}));
  EXPECT_EQ(inputs("net/2/relu"), (Names{"net/1/batch_norm"}));
  EXPECT_EQ(nodes["net/0/addmm"]["op"], "aten::addmm");
  EXPECT_EQ(nodes["net/0/addmm"]["device"], "/device:CPU:0");
  EXPECT_EQ(nodes["net/0/addmm"]["sizes"], Json::parse("[[8, 3]]"));
  EXPECT_EQ(nodes["net/0/weight"]["op"], "Parameter");
  EXPECT_EQ(nodes["net/0/weight"]["sizes"], Json::parse("[[3, 4]]"));
  EXPECT_EQ(nodes["input/x"]["op"], "Input");
  EXPECT_FALSE(nodes.contains("input/y")) << "nothing reads it";
  EXPECT_EQ(inputs("sum"), (Names{"net/2/relu"}));
  EXPECT_EQ(inputs("add"), (Names{"input/x", "sum"}));
  EXPECT_EQ(inputs("addmm"), (Names{"first/bias", "add", "t"})) << "layers that are no units";
  EXPECT_EQ(inputs("output/y"), (Names{"addmm_1"}));
  EXPECT_EQ(inputs("output/sum"), (Names{"sum_1"}));
  EXPECT_FALSE(found.at("scalars").empty());
}

TEST(ModelGraph, ChangesNothingInTheTraining) {
  std::vector<std::vector<at::Tensor>> of_runs;
  for (const bool draws : {false, true}) {
    seed_everything(5);
    Trainer trainer(drawing(fresh_folder("graph"), make<TensorBoardLogger>({.log_graph = draws})));
    auto module = make<Drawn>({.dropout = 0.4});
    trainer.fit(module, tiny_loader(32), tiny_loader(8, 8, false));
    of_runs.push_back(weights(*module));
    for (const auto& buffer : module->buffers()) of_runs.back().push_back(buffer.clone());
  }
  EXPECT_TRUE(identical(of_runs[0], of_runs[1]));
}

TEST(ModelGraph, WhatCannotBeTracedIsAWarning) {
  class WithoutPrediction : public TinyModule {
   public:
    using TinyModule::TinyModule;
    Batch predict_step(const Batch& batch, int64_t batch_idx) override {
      return Module::predict_step(batch, batch_idx);
    }
  };
  const CapturedLog log;
  Trainer trainer(drawing(fresh_folder("graph"), make<TensorBoardLogger>({.log_graph = true})));
  trainer.fit(make<WithoutPrediction>({}), tiny_loader(16));
  EXPECT_EQ(trainer.global_step(), 4);
  EXPECT_NE(log.text().find("the graph of the model is not logged: "), std::string::npos) << log.text();
  EXPECT_NE(log.text().find("predict_step"), std::string::npos) << log.text();
}

TEST(ModelGraph, IsThereWhereALoggerWantsIt) {
  const auto has_graph = [](const Trainer& trainer) {
    for (const auto& callback : trainer.callbacks())
      if (dynamic_cast<ModelGraph*>(callback.get()) != nullptr) return true;
    return false;
  };
  for (const bool wants : {false, true}) {
    Trainer trainer(drawing(fresh_folder("graph"), make<TensorBoardLogger>({.log_graph = wants})));
    trainer.fit(make<TinyModule>({}), tiny_loader(8));
    EXPECT_EQ(has_graph(trainer), wants);
  }
  TrainerOptions options = drawing(fresh_folder("graph"), make<CsvLogger>({}));
  options.callbacks = {"model_graph"};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({}), tiny_loader(8));
  EXPECT_TRUE(has_graph(trainer));
}

TEST(ModelGraph, OfRanksIsRankZeros) {
  for (const std::string strategy : {"ddp_threads", "dp"}) {
    TrainerOptions options = drawing(fresh_folder("graph"), make<TensorBoardLogger>({.log_graph = true}));
    options.strategy = strategy;
    options.devices = 2;
    Trainer trainer(options);
    trainer.fit(make<Drawn>({}), tiny_loader(32));
    EXPECT_FALSE(read_back(trainer.run_directory()).at("graph").empty()) << strategy;
  }
}

}  // namespace
}  // namespace levin::testing
