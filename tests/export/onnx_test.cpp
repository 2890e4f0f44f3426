// Models as ONNX: onnxruntime gives the module's numbers at any batch size, and what cannot be written is named.

#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "exported_models.h"
#include "tests/support/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::ExportedModel;
using ::testing::HasSubstr;

/// Writes inputs and what the module makes of them beside a model, for use_onnx.py.
void write_results(const ExportedModel& model, const ExportReport& report, const std::string& folder) {
  model.module->eval();
  const torch::NoGradGuard no_gradients;
  for (const int64_t rows : {1, 9}) {
    const Batch batch = model.batch(rows);
    std::vector<NamedTensor> tensors;
    for (const auto& name : report.inputs) tensors.emplace_back(name, batch[name]);
    const Batch results = model.function(batch);
    for (const auto& [name, tensor] : results.items()) tensors.emplace_back(name, tensor);
    const auto file = FileSystem::current().create(folder + "/" + model.name + std::to_string(rows) + ".safetensors");
    write_safetensors(*file, tensors);
    file->close();
  }
}

void expect_same_in_onnxruntime(const std::string& folder, const std::string& said) {
  const auto run = testing::run_program(
      {testing::test_python(), "-W", "ignore", testing::source_path("tests/export/use_onnx.py"), folder});
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.out, said);
}

class OnnxExport : public ::testing::TestWithParam<std::string> {};

TEST_P(OnnxExport, PassesTheCheckerAndHasAFreeBatchSize) {
  const ExportedModel model = testing::exported_model(GetParam());
  const std::string path = testing::fresh_folder("onnx") + "/model.onnx";
  const ExportReport report = export_model(*model.module, model.function, model.batch(4), path);
  EXPECT_EQ(report.fixed, std::vector<std::string>());
  EXPECT_EQ(report.files, std::vector<std::string>{path});
  EXPECT_GT(std::filesystem::file_size(path), 1000);
}

INSTANTIATE_TEST_SUITE_P(Models, OnnxExport,
                         ::testing::Values("mlp", "cnn", "resnet", "recurrent", "gpt2", "llama", "encoder", "vit",
                                           "vae", "masked"),
                         [](const auto& info) { return info.param; });

TEST(OnnxRuntime, GivesTheNumbersOfEachModel) {
  if (const std::string missing = testing::missing_module("onnxruntime"); !missing.empty()) GTEST_SKIP() << missing;
  const std::string folder = testing::fresh_folder("onnx");
  for (const ExportedModel& model : testing::exported_models())
    write_results(model,
                  export_model(*model.module, model.function, model.batch(4), folder + "/" + model.name + ".onnx"),
                  folder);
  expect_same_in_onnxruntime(folder, "10 models\n");
}

TEST(OnnxRuntime, GivesTheNumbersOfABatchOfGraphs) {
  if (const std::string missing = testing::missing_module("onnxruntime"); !missing.empty()) GTEST_SKIP() << missing;
  const std::string folder = testing::fresh_folder("onnx");
  const ExportedModel model = testing::graph_model();
  const ExportReport report = export_model(*model.module, model.function, model.batch(3), folder + "/graphs.onnx");
  EXPECT_EQ(report.fixed, std::vector<std::string>());
  const torch::NoGradGuard no_gradients;
  for (const int64_t graphs : {1, 2, 3, 8}) {
    const Batch batch = model.batch(graphs);
    std::vector<NamedTensor> tensors;
    for (const auto& name : report.inputs) tensors.emplace_back("in." + name, batch[name]);
    const Batch results = model.function(batch);
    for (const auto& [name, tensor] : results.items()) tensors.emplace_back("out." + name, tensor);
    const auto file = FileSystem::current().create(folder + "/graphs." + std::to_string(graphs) + ".safetensors");
    write_safetensors(*file, tensors);
    file->close();
  }
  const auto run = testing::run_program(
      {testing::test_python(), "-W", "ignore", testing::source_path("tests/export/run_operators.py"), folder});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.out, "4 results\n");
}

TEST(OnnxRuntime, FindsLargeWeightsBesideTheModel) {
  if (const std::string missing = testing::missing_module("onnxruntime"); !missing.empty()) GTEST_SKIP() << missing;
  const std::string folder = testing::fresh_folder("onnx");
  for (const std::string name : {"resnet", "gpt2", "recurrent"}) {
    const ExportedModel model = testing::exported_model(name);
    const std::string path = folder + "/" + name + ".onnx";
    const ExportReport report =
        export_model(*model.module, model.function, model.batch(4), path, {.external_data_bytes = 10'000});
    EXPECT_EQ(report.files, (std::vector<std::string>{path, path + ".data"}));
    EXPECT_GT(std::filesystem::file_size(path + ".data"), std::filesystem::file_size(path));
    write_results(model, report, folder);
  }
  expect_same_in_onnxruntime(folder, "3 models\n");
}

struct OddImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return torch::fft_fft(x).abs() + torch::special_i0(x); }
};
LEVIN_UNIT(Odd);

TEST(OnnxProblems, AnOperatorWithoutCounterpartIsNamedWithItsUnit) {
  const std::string folder = testing::fresh_folder("onnx");
  levin::Sequential net(torch::nn::Linear(4, 4), Odd());
  const auto function = [&](const Batch& batch) { return Batch{{"y", net(batch["x"])}}; };
  EXPECT_THAT(testing::error_of([&] {
                export_model(*net, function, {{"x", torch::rand({2, 4})}}, folder + "/odd.onnx");
              }),
              AllOf(HasSubstr("[export] ONNX has no counterpart here of aten::fft_fft of the unit '1'"),
                    HasSubstr("aten::i0 of the unit '1'"), HasSubstr("hint: export TorchScript")));
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "nothing is half written";
}

TEST(OnnxProblems, WhatOnnxDoesOtherwiseIsRefused) {
  const std::string folder = testing::fresh_folder("onnx");
  levin::Sequential net(torch::nn::Linear(10, 10));
  const auto refusal = [&](const std::function<at::Tensor(const at::Tensor&)>& last) {
    const auto function = [&](const Batch& batch) { return Batch{{"y", last(net(batch["x"]))}}; };
    return testing::error_of([&] {
      export_model(*net, function, {{"x", torch::rand({2, 3, 10, 10})}}, folder + "/odd.onnx");
    });
  };
  namespace F = torch::nn::functional;
  const auto enlarged = [](double factor) {
    return [factor](const at::Tensor& x) {
      return F::interpolate(x, F::InterpolateFuncOptions().scale_factor(std::vector<double>{factor, factor}));
    };
  };
  EXPECT_THAT(refusal(enlarged(1.25)), HasSubstr("its factor 1.25 gives 12.5 pixels"));
  EXPECT_EQ(refusal(enlarged(1.5)), "no error");
  EXPECT_THAT(refusal([](const at::Tensor& x) { return at::round(x, 2); }), HasSubstr("it is given decimals"));
  // Its last windows lie behind the padding of a runtime.
  EXPECT_THAT(refusal([](const at::Tensor& x) {
                return at::max_pool2d(x, {2, 2}, {3, 3}, {1, 1}, {3, 3}, /*ceil_mode=*/true);
              }),
              HasSubstr("pads as much as a window is wide"));
  EXPECT_EQ(refusal([](const at::Tensor& x) { return at::round(x); }), "no error");
  EXPECT_EQ(refusal([](const at::Tensor& x) { return at::isnan(x); }), "no error");
}

/// Of a model that ends with a function of rows of 4 numbers, what its export says.
std::string refusal_of(const std::function<at::Tensor(const at::Tensor&)>& last) {
  const std::string folder = testing::fresh_folder("onnx");
  levin::Sequential net(torch::nn::Linear(4, 4), last);
  const auto function = [&](const Batch& batch) { return Batch{{"y", net(batch["x"])}}; };
  return testing::error_of([&] { export_model(*net, function, {{"x", torch::rand({2, 4})}}, folder + "/odd.onnx"); });
}

TEST(OnnxProblems, WhatTheCheckerRefusesIsSaidOfItsOperatorAndUnit) {
  const std::string refusal = refusal_of([](const at::Tensor& x) { return x + at::arange(4, at::kByte); });
  EXPECT_THAT(refusal, AllOf(HasSubstr("[export] aten::arange of the unit '1' cannot be written as ONNX: "),
                             HasSubstr("uint8"), HasSubstr("hint: export TorchScript")));
  EXPECT_LT(refusal.size(), 400) << refusal;
}

TEST(OnnxProblems, WhatDependsOnTheNumberOfRowsIsRefused) {
  EXPECT_THAT(refusal_of([](const at::Tensor& x) {
                return at::chunk(x.repeat({4, 1}), 2, 0)[1].sum(0) + x;
              }),
              AllOf(HasSubstr("aten::chunk of the unit '1'"), HasSubstr("dimension 0, which changes with the batch")));
  EXPECT_THAT(refusal_of([](const at::Tensor& x) { return x.index({x.select(1, 0) > 0}).sum() + x; }),
              AllOf(HasSubstr("aten::index of the unit '1'"), HasSubstr("truth values")));
}

TEST(OnnxProblems, AWriteThroughAViewIsRefused) {
  const std::string folder = testing::fresh_folder("onnx");
  levin::Sequential net(torch::nn::Linear(4, 4));
  const auto function = [&](const Batch& batch) {
    const at::Tensor y = net(batch["x"]);
    y.select(1, 0).add_(1);
    return Batch{{"y", y}};
  };
  EXPECT_THAT(testing::error_of([&] {
                export_model(*net, function, {{"x", torch::rand({2, 4})}}, folder + "/view.onnx");
              }),
              AllOf(HasSubstr("aten::add_"), HasSubstr("in place")));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace levin
