// What an export asks of the model, the example and the path, and what it says where the batch size cannot be free.

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/data/csv.h>
#include <levin/core/trainer/example_batch.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "exported_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::ExportedModel;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct ExportProblems : ::testing::Test {
  std::string export_error(const Batch& example, const std::string& path, const ExportOptions& options = {}) {
    return testing::error_of([&] { export_model(*net, function, example, path, options); });
  }

  std::string folder = testing::fresh_folder("export");
  levin::Sequential net{torch::nn::Linear(4, 2), torch::nn::BatchNorm1d(2)};
  ExportedFunction function = [this](const Batch& batch) { return Batch{{"y", net(batch["x"])}}; };
  Batch example{{"x", torch::rand({4, 4})}};
};

TEST_F(ExportProblems, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(export_error(example, folder + "/none/model.pt"),
              AllOf(HasSubstr("there is no folder"), HasSubstr("/none"), HasSubstr("model.pt")));
  EXPECT_FALSE(std::filesystem::exists(folder + "/none"));
}

TEST_F(ExportProblems, AnEndingThatNamesNoFormatIsRefusedUnlessTheFormatIsGiven) {
  EXPECT_THAT(export_error(example, folder + "/model.bin"), AllOf(HasSubstr("model.bin"), HasSubstr("valid: .pt")));
  EXPECT_EQ(export_error(example, folder + "/model.bin", {.format = ExportFormat::kTorchScript}), "no error");
  EXPECT_NO_THROW(torch::jit::load(folder + "/model.bin"));
  EXPECT_THAT(export_error(example, folder), HasSubstr("is a folder"));
  EXPECT_THAT(export_error(example, ""), HasSubstr("no path"));
}

TEST_F(ExportProblems, AnExampleOfTheWrongShapeIsOneMessageAndLeavesTheOldFile) {
  std::ofstream(folder + "/model.pt") << "old";
  EXPECT_THAT(export_error({{"x", torch::rand({4, 3})}}, folder + "/model.pt"),
              AllOf(HasSubstr("[export] the model cannot be run with a batch of 2 rows like the example, in evaluation "
                              "mode: "),
                    HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)")));
  EXPECT_EQ(std::filesystem::file_size(folder + "/model.pt"), 3);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "nothing is left beside it";
  EXPECT_EQ(export_error(example, folder + "/model.pt"), "no error");
}

TEST_F(ExportProblems, AnExampleWithoutWhatTheModelReadsIsOneMessage) {
  EXPECT_THAT(export_error({}, folder + "/model.pt"), HasSubstr("the example has no tensors"));
  EXPECT_THAT(export_error({{"x", torch::rand({0, 4})}}, folder + "/model.pt"), HasSubstr("no rows"));
  EXPECT_THAT(export_error({{"x", torch::rand({2, 4})}, {"w", torch::rand({0, 3})}}, folder + "/model.pt"),
              HasSubstr("'w' has no rows"));
  EXPECT_THAT(export_error({{"image", torch::rand({2, 4})}}, folder + "/model.pt"), HasSubstr("image"));
  function = [](const Batch&) { return Batch{{"y", torch::ones({2})}}; };
  EXPECT_THAT(export_error(example, folder + "/model.pt"), HasSubstr("does not depend on the example"));
  function = [](const Batch&) { return Batch{}; };
  EXPECT_THAT(export_error(example, folder + "/model.pt"), HasSubstr("gave no tensors"));
  EXPECT_THAT(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

TEST_F(ExportProblems, AnErrorOfTheModelPassesThrough) {
  const ExportedFunction works = function;
  function = [](const Batch&) -> Batch { throw std::out_of_range("mine"); };
  EXPECT_THROW(export_model(*net, function, example, folder + "/model.pt"), std::out_of_range);
  function = works;
  EXPECT_EQ(export_error(example, folder + "/model.pt"), "no error") << "after the error, tracing works";
}

TEST_F(ExportProblems, WhatTiesTheFileToTheBatchSizeIsSaidWithTheUnit) {
  net = levin::Sequential(torch::nn::Linear(4, 2),
                          [](const at::Tensor& x) { return x.slice(0, 0, x.size(0) - 1).sum(0, true) + x; });
  testing::CapturedLog log;
  const ExportReport report = export_model(*net, function, example, folder + "/model.pt");
  ASSERT_EQ(report.fixed.size(), 2) << "in both modes";
  EXPECT_THAT(report.fixed[0], HasSubstr("aten::slice of the unit '1' is given 1 with 2 rows and 2 with 3"));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("takes batches of 4 rows alone"), HasSubstr("aten::slice")));
  auto script = torch::jit::load(folder + "/model.pt");
  net->eval();
  EXPECT_TRUE(at::equal(script.forward({example["x"]}).toTensor(), net(example["x"]))) << "with the example's size";
}

TEST_F(ExportProblems, OperatorsThatDependOnTheBatchSizeAreSaid) {
  net = levin::Sequential(torch::nn::Linear(4, 2), [](const at::Tensor& x) {
    at::Tensor sum = x[0];
    for (int64_t i = 1; i < x.size(0); ++i) sum = sum + x[i];
    return sum.expand({x.size(0), 2});
  });
  const ExportReport report = export_model(*net, function, example, folder + "/model.pt");
  ASSERT_FALSE(report.fixed.empty());
  EXPECT_THAT(report.fixed[0], HasSubstr("depends on the batch size"));
}

TEST_F(ExportProblems, BoundsThatCodeSetsToTheRowsAreSaid) {
  using Function = at::Tensor (*)(const at::Tensor&);
  for (const Function bounded :
       std::initializer_list<Function>{[](const at::Tensor& x) { return x / std::max<int64_t>(x.size(0), 4); },
                                       [](const at::Tensor& x) { return x + x.size(0) / 4; },
                                       [](const at::Tensor& x) { return x * (x.size(0) % 4); },
                                       [](const at::Tensor& x) { return x.size(0) > 4 ? x * 2 : x * 3; }}) {
    net = levin::Sequential(torch::nn::Linear(4, 2), [bounded](const at::Tensor& x) { return bounded(x); });
    const Batch eight{{"x", torch::rand({8, 4})}};
    const ExportReport report = export_model(*net, function, eight, folder + "/model.pt");
    ASSERT_FALSE(report.fixed.empty());
    EXPECT_THAT(report.fixed[0], HasSubstr("the traced operators give another 'y' than the model"));
    auto script = torch::jit::load(folder + "/model.pt");
    net->eval();
    EXPECT_TRUE(at::allclose(script.forward({eight["x"]}).toTensor(), net(eight["x"])));
  }
}

TEST_F(ExportProblems, NumbersThatTheModelReadsOutOfItsBatchAreSaid) {
  using Function = at::Tensor (*)(const at::Tensor&);
  const std::vector<Function> readers{[](const at::Tensor& x) { return x / x.abs().max().item<float>(); },
                                      [](const at::Tensor& x) { return x + x.mean().item<float>(); },
                                      [](const at::Tensor& x) { return x * (x > 0).nonzero().size(0); },
                                      [](const at::Tensor& x) { return x + at::full({2}, x[0][0].item<float>()); },
                                      [](const at::Tensor& x) { return x.sum().item<float>() > 0 ? x * 2 : x * 3; },
                                      [](const at::Tensor& x) { return x + at::Tensor(x.data()).mul(2); }};
  for (const int64_t rows : {1, 2, 5}) {
    for (size_t i = 0; i < readers.size(); ++i) {
      SCOPED_TRACE(fmt::format("reader {}, {} rows", i, rows));
      torch::nn::Linear layer(torch::nn::LinearOptions(4, 2).bias(false));
      torch::nn::init::constant_(layer->weight, 0.5);  // so that what it gives has the sign of x
      net = levin::Sequential(layer, [&](const at::Tensor& x) { return readers[i](x); });
      testing::CapturedLog log;
      export_model(*net, function, {{"x", torch::rand({rows, 4}) + 0.1}}, folder + "/model.pt");
      EXPECT_THAT(log.text(), HasSubstr("took from the example's values"));
    }
  }
}

TEST_F(ExportProblems, RowsThatAreTakenByPositionAreSaidForAnExampleOfOneRow) {
  net = levin::Sequential(torch::nn::Linear(4, 2), [](const at::Tensor& x) {
    return at::cat({x.slice(0, 0, x.size(0) / 2), x.slice(0, x.size(0) / 2).flip(0)});
  });
  const ExportReport report = export_model(*net, function, {{"x", torch::rand({1, 4})}}, folder + "/model.pt");
  EXPECT_THAT(report.fixed, Not(IsEmpty()));
}

TEST_F(ExportProblems, AModelThatTakesNoSingleRowIsExported) {
  net = levin::Sequential(torch::nn::Linear(4, 2),
                          torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2).track_running_stats(false)));
  const ExportReport report = export_model(*net, function, example, folder + "/model.pt");
  EXPECT_THAT(report.fixed, IsEmpty());
}

TEST_F(ExportProblems, WhatIsNoOperatorIsAnError) {
  net = levin::Sequential(torch::nn::Linear(4, 2), [](const at::Tensor& x) {
    at::Tensor mask = at::empty_like(x);
    for (int64_t i = 0; i < mask.numel(); ++i) mask.data_ptr<float>()[i] = static_cast<float>(i % 3);
    return x * mask;
  });
  EXPECT_THAT(export_error(example, folder + "/model.pt"), HasSubstr("something that it computes is no operator"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/model.pt"));
}

TEST_F(ExportProblems, WhatTrainsOtherwiseIsSaid) {
  const auto said = [&] {
    testing::CapturedLog log;
    export_model(*net, function, example, folder + "/model.pt");
    return log.text();
  };
  EXPECT_THAT(said(), Not(HasSubstr("prediction alone")));
  net = levin::Sequential(torch::nn::Linear(4, 2),
                          torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2).momentum(std::nullopt)));
  EXPECT_THAT(said(), HasSubstr("trained further it is not the module, the buffer '1.running_mean' is another one"));
  torch::nn::Linear frozen(4, 2);
  torch::nn::Linear head(2, 2);
  net = levin::Sequential(frozen, head);
  function = [frozen, head](const Batch& batch) mutable {
    const auto features = [&] {
      const at::NoGradGuard no_gradients;
      return frozen(batch["x"]);
    };
    return Batch{{"y", head(features())}};
  };
  EXPECT_THAT(said(), HasSubstr("the gradient of '0.weight' is another one"));
}

TEST_F(ExportProblems, AForwardThatWritesToAParameterIsAnError) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(8, 4).max_norm(0.1));
  net = levin::Sequential(embedding);
  const Batch indices{{"x", torch::arange(6)}};
  EXPECT_THAT(export_error(indices, folder + "/model.pt"), HasSubstr("forward writes to the parameter '0.weight'"));
}

TEST_F(ExportProblems, SizesThatOneRowWouldLoseAreRefusedInOnnx) {
  net = levin::Sequential(torch::nn::Linear(4, 2), [](const at::Tensor& x) { return x.squeeze(0); });
  EXPECT_THAT(export_error(example, folder + "/model.onnx"), HasSubstr("aten::squeeze"));
}

TEST_F(ExportProblems, AConstantThatIsNaNLeavesTheBatchSizeFree) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  net = levin::Sequential(torch::nn::Linear(4, 2), [](const at::Tensor& x) {
    const at::Tensor constant = torch::tensor({1.0, kNan}).to(at::kFloat);
    return at::where(x > 0, x, constant).masked_fill(x < -1, kNan) + at::full({x.size(0), 2}, 0.5);
  });
  EXPECT_THAT(export_model(*net, function, example, folder + "/model.pt").fixed, IsEmpty());
  auto script = torch::jit::load(folder + "/model.pt");
  net->eval();
  const at::Tensor x = torch::randn({7, 4});
  EXPECT_TRUE(at::allclose(script.forward({x}).toTensor(), net(x), 0, 0, /*equal_nan=*/true));
}

TEST_F(ExportProblems, ABatchOfGraphsHasSizesOfItsOwn) {
  const ExportedModel model = testing::graph_model();
  const ExportReport report = export_model(*model.module, model.function, model.batch(3), folder + "/model.pt");
  EXPECT_THAT(report.fixed, IsEmpty());
  EXPECT_EQ(report.inputs, (std::vector<std::string>{"x", "from", "to", "graph", "label"}));
  auto script = torch::jit::load(folder + "/model.pt");
  script.eval();
  const torch::NoGradGuard no_gradients;
  for (const int64_t graphs : {1, 2, 3, 8}) {
    const Batch batch = model.batch(graphs);
    std::vector<c10::IValue> inputs;
    for (const auto& [name, tensor] : batch.items()) inputs.emplace_back(tensor);
    const auto results = script.forward(inputs).toGenericDict();
    const Batch expected = model.function(batch);
    for (const auto& [name, tensor] : expected.items())
      EXPECT_TRUE(at::equal(results.at(name).toTensor(), tensor)) << name << " of " << graphs;
  }
}

TEST_F(ExportProblems, WhatTiesAFileToSizesOfItsOwnIsSaid) {
  const ExportedModel model = testing::graph_model();
  const auto function = [&](const Batch& batch) {
    return Batch{{"y", model.function(batch)["nodes"].slice(0, 0, batch["to"].size(0) - batch["x"].size(0))}};
  };
  testing::CapturedLog log;
  const ExportReport report = export_model(*model.module, function, model.batch(3), folder + "/model.pt");
  ASSERT_FALSE(report.fixed.empty());
  EXPECT_THAT(report.fixed[0], AllOf(HasSubstr("aten::slice of the model is given"),
                                     HasSubstr("given 3 with 8 and 11 and 3 rows and 4 with 9 and 13 and 6")));
  EXPECT_THAT(log.text(), HasSubstr("takes batches of the example's sizes alone"));
}

/// Says which stages set it up, and has no data but those of the last.
class SetUpInStages : public DataModule {
 public:
  void setup(Stage stage) override { stages += std::string(to_string(stage)) + " "; }
  void teardown(Stage stage) override { stages += "(" + std::string(to_string(stage)) + ") "; }
  DataLoader train_dataloader() override { return testing::tiny_loader(); }
  std::string stages;
};

TEST(ExampleOfTheCommand, IsOfTheFirstStageThatHasData) {
  testing::TinyModule module(testing::TinyOptions{});
  SetUpInStages data;
  const ExampleBatch example = find_example_batch(module, &data);
  EXPECT_TRUE(example.batch.find("x") != nullptr);
  EXPECT_EQ(example.stage, Stage::kFit);
  EXPECT_EQ(data.stages, "predict (predict) test (test) fit ");
}

TEST(ExampleOfTheCommand, OfAShippedDataModuleIsThatOfValidationOrTrainingWhereItHasNoTest) {
  const std::string path = testing::fresh_folder("example") + "/table.csv";
  std::ofstream file(path);
  file << "a,b,c\n";
  for (int i = 0; i < 20; ++i) file << i << "," << i * i << "," << -i << "\n";
  file.close();
  testing::TinyModule module(testing::TinyOptions{});
  const auto rows = [&](double val_fraction, double test_fraction) {
    data::Csv data({.path = path, .val_fraction = val_fraction, .test_fraction = test_fraction});
    return find_example_batch(module, &data).batch.size();
  };
  EXPECT_EQ(rows(0.25, 0.1), 2) << "of the test part";
  EXPECT_EQ(rows(0.25, 0), 5) << "of validation";
  EXPECT_EQ(rows(0, 0), 20) << "of training";
}

/// Has loaders of its own beside those of a data module.
class WithTestData : public testing::TinyModule {
 public:
  using TinyModule::TinyModule;
  DataLoaders test_dataloader() override { return testing::tiny_loader(6, 6, false); }
};

TEST(ExampleOfTheCommand, IsTheModulesOwnWhereTheDataModuleHasNone) {
  WithTestData module(testing::TinyOptions{});
  SetUpInStages data;
  EXPECT_EQ(find_example_batch(module, &data).batch.size(), 6);
  EXPECT_EQ(find_example_batch(module, nullptr).stage, Stage::kTest);
}

/// Predicts a sign, exports what it is taken from.
class Signs : public testing::TinyModule {
 public:
  using TinyModule::TinyModule;
  Batch predict_step(const Batch& batch, int64_t /*batch_idx*/) override {
    return {{"sign", forward(batch["x"]).sign()}};
  }
};

TEST(ExportOfAModule, IsItsPredictionUnlessItSaysOtherwise) {
  const std::string path = testing::fresh_folder("export") + "/model.pt";
  Signs module(testing::TinyOptions{});
  const Batch example{{"x", torch::rand({3, 4})}, {"y", torch::rand({3, 1})}};
  const ExportReport report = export_model(module, example, path);
  EXPECT_EQ(report.inputs, std::vector<std::string>{"x"}) << "what is not read is no input";
  EXPECT_EQ(report.outputs, std::vector<std::string>{"sign"});
  auto script = torch::jit::load(path);
  EXPECT_TRUE(at::equal(script.forward({example["x"]}).toTensor(), module.forward(example["x"]).sign()));
}

TEST(TrainerExport, WritesTheWeightsThatItTrainedOrThoseOfACheckpoint) {
  const std::string folder = testing::fresh_folder("export");
  auto module = std::make_shared<testing::TinyModule>(testing::TinyOptions{});
  Trainer trainer(testing::quiet(2));
  trainer.fit(module, testing::tiny_loader());
  const Batch example{{"x", torch::rand({3, 4})}};
  const auto weight_in = [&](const std::string& path) {
    return torch::jit::load(path).attr("first").toModule().attr("weight").toTensor();
  };
  EXPECT_TRUE(trainer.export_model(module, example, folder + "/trained.pt").fixed.empty());
  const at::Tensor trained = module->named_parameters()["first.weight"].detach().clone();
  EXPECT_TRUE(at::equal(weight_in(folder + "/trained.pt"), trained));

  trainer.save_checkpoint(folder + "/ckpt");
  auto fresh = std::make_shared<testing::TinyModule>(testing::TinyOptions{});
  Trainer another(testing::quiet(1));
  another.export_model(fresh, example, folder + "/fresh.pt");
  EXPECT_FALSE(at::equal(weight_in(folder + "/fresh.pt"), trained));
  another.export_model(fresh, example, folder + "/loaded.pt", folder + "/ckpt");
  EXPECT_TRUE(at::equal(weight_in(folder + "/loaded.pt"), trained));
  trainer.fit(module, testing::tiny_loader());
}

TEST(TrainerExport, IsRefusedWithoutAModuleOrCheckpointAndInsideOfACall) {
  const std::string path = testing::fresh_folder("export") + "/model.pt";
  const Batch example{{"x", torch::rand({3, 4})}};
  auto module = std::make_shared<testing::TinyModule>(testing::TinyOptions{});
  std::string inside;
  TrainerOptions options = testing::quiet(1);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{.on_train_end = [&](Trainer& trainer, Module&) {
    inside = testing::error_of([&] { trainer.export_model(module, example, path); });
  }})};
  Trainer trainer(options);
  EXPECT_THAT(testing::error_of([&] { trainer.export_model(nullptr, example, path); }), HasSubstr("needs a module"));
  EXPECT_THAT(testing::error_of([&] { trainer.export_model(module, example, path, "/none"); }),
              HasSubstr("there is no checkpoint '/none'"));
  trainer.fit(module, testing::tiny_loader());
  EXPECT_THAT(inside, HasSubstr("while the trainer is at work"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace levin
