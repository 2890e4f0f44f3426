// A TorchScript file as a module that trains, and exported programs that predict.

#include <levin/core/nn/exported_program.h>
#include <levin/core/nn/script_module.h>

#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/export/export_model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    // A bias before BatchNorm has no gradient but what rounding leaves, of which AdamW makes whole steps.
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    head = register_module("head", torch::nn::Linear(4 * 8 * 8, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return head(dropout(at::relu(norm(conv(x))).flatten(1))); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(SmallNet);

/// Where the net lies as TorchScript.
std::string script_of(SmallNet& net) {
  const std::string path = testing::fresh_folder("script") + "/net.pt";
  export_model(
      *net,
      [&](const Batch& batch) {
        return Batch{{"y", net(batch["x"])}};
      },
      {{"x", at::rand({2, 3, 8, 8})}}, path);
  return path;
}

template <class Model>
double train(Model& model, int steps, const at::Tensor& x, const at::Tensor& labels) {
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  torch::manual_seed(7);
  double loss_value = 0;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(model(x), labels);
    loss.backward();
    optimizer.step();
    loss_value = loss.template item<double>();
  }
  return loss_value;
}

TEST(ScriptModuleTest, TrainsToTheWeightsOfTheModuleItWasMadeFrom) {
  torch::manual_seed(1);
  SmallNet net;
  ScriptModule script(script_of(net));
  EXPECT_FALSE(script->is_training());
  net->train();
  script->train();
  const at::Tensor x = at::randn({16, 3, 8, 8});
  const at::Tensor labels = at::randint(0, 5, {16});
  const double loss = train(net, 10, x, labels);
  EXPECT_NEAR(train(script, 10, x, labels), loss, 1e-5);
  const auto expected = named_tensors(*net);
  const auto trained = named_tensors(*script);
  ASSERT_EQ(trained.size(), expected.size());
  std::map<std::string, at::Tensor> by_name(trained.begin(), trained.end());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    EXPECT_TRUE(at::allclose(by_name.at(name).to(at::kDouble), tensor.to(at::kDouble), 1e-6, 1e-7)) << name;
  }
  script->eval();
  net->eval();
  EXPECT_TRUE(at::allclose(script(x), net(x), 1e-5, 1e-6));
}

TEST(ScriptModuleTest, FollowsWhatIsDoneToTheModuleAndIsWrittenAgain) {
  SmallNet net;
  const std::string path = script_of(net);
  ScriptModule script(path);
  {
    const at::NoGradGuard no_gradients;
    script->named_parameters()["head.bias"].add_(1);
  }
  script->to(at::kDouble);
  const at::Tensor x = at::rand({2, 3, 8, 8}, at::kDouble);
  const at::Tensor y = script(x);
  EXPECT_EQ(y.scalar_type(), at::kDouble);
  script->write(path);
  ScriptModule again(path);
  EXPECT_TRUE(at::equal(again(x), y));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()), {}), 1);
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ScriptModuleTest, WhatIsNoTorchScriptIsOneMessage) {
  const std::string folder = testing::fresh_folder("script");
  EXPECT_THAT(error_of([&] { ScriptModule script(folder + "/none.pt"); }), HasSubstr("there is no file"));
  std::ofstream(folder + "/text.pt") << "not a zip";
  EXPECT_THAT(error_of([&] { ScriptModule script(folder + "/text.pt"); }),
              AllOf(HasSubstr("[script_module]"), HasSubstr("text.pt' is no TorchScript"), HasSubstr("valid: ")));
  SmallNet net;
  const std::string path = script_of(net);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const std::string truncated = error_of([&] { ScriptModule script(path); });
  EXPECT_THAT(truncated, HasSubstr("is no TorchScript"));
  EXPECT_EQ(truncated.find('\n'), std::string::npos) << truncated;
}

TEST(ScriptModuleTest, AnotherNumberOfTensorsIsNamed) {
  SmallNet net;
  ScriptModule script(script_of(net));
  const at::Tensor x = at::rand({2, 3, 8, 8});
  EXPECT_THAT(error_of([&] { script->forward_all({x, x}); }), HasSubstr("takes 1 tensor; got 2"));
  EXPECT_EQ(script->forward_all({x}).size(), 1);
}

TEST(ExportedProgramTest, WhatIsNoProgramIsOneMessage) {
  const std::string folder = testing::fresh_folder("program");
  EXPECT_THAT(error_of([&] { ExportedProgram program(folder + "/none.pt2"); }), HasSubstr("there is no file"));
  std::ofstream(folder + "/text.pt2") << "not a zip";
  EXPECT_THAT(error_of([&] { ExportedProgram program(folder + "/text.pt2"); }),
              AllOf(HasSubstr("[exported_program]"), HasSubstr("is no exported program")));
}

TEST(ExportedProgramTest, PredictsWhatPythonExported) {
  const std::string folder = testing::fresh_folder("exported");
  const auto python = testing::run_program(
      {testing::torch_python(), "-W", "ignore", testing::source_path("tests/nn/make_program.py"), folder});
  if (python.status != 0 && python.err.find("No module named") != std::string::npos)
    GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  ASSERT_EQ(python.status, 0) << python.err;
  const SafetensorsFile data(folder + "/data.safetensors");
  ExportedProgram program(folder + "/net.pt2");

  const auto results = program.forward({data.read("input")});
  ASSERT_EQ(results.size(), 2);
  EXPECT_TRUE(at::equal(results[0], data.read("output")));
  EXPECT_FALSE(results[0].requires_grad());
  const auto of_nine = program.forward({data.read("nine")});
  EXPECT_TRUE(at::allclose(of_nine[0], data.read("of_nine"), 1e-5, 1e-6)) << "its batch size is dynamic";
  EXPECT_TRUE(at::allclose(of_nine[1], data.read("sums"), 1e-5, 1e-6)) << "results come one after another";

  EXPECT_THAT(error_of([&] { program.forward({at::rand({4, 5})}); }), HasSubstr("does not take these inputs"));
  EXPECT_THAT(error_of([&] { program.forward({}); }), HasSubstr("does not take these inputs"));
  EXPECT_TRUE(program.constant_names().empty());
  EXPECT_THAT(error_of([&] {
                program.load_constants({{"net.0.weight", at::rand({8, 4})}});
              }),
              HasSubstr("has no constant 'net.0.weight' that can be replaced"));

  const std::string whole = testing::read_text(folder + "/net.pt2");
  std::ofstream(folder + "/cut.pt2", std::ios::binary) << whole.substr(0, whole.size() / 2);
  EXPECT_THAT(error_of([&] { ExportedProgram cut(folder + "/cut.pt2"); }), HasSubstr("is no exported program"));
}

// Compiling takes Python most of a minute, so that the package is made by hand, on the machine that runs the test.
TEST(ExportedProgramTest, PredictsWhatPythonCompiled) {
  const char* folder = std::getenv("LEVIN_COMPILED_PROGRAM");
  if (folder == nullptr)
    GTEST_SKIP() << "LEVIN_COMPILED_PROGRAM is not set; hint: python tests/nn/make_program.py FOLDER --compile, "
                    "LEVIN_COMPILED_PROGRAM=FOLDER";
  const SafetensorsFile data(std::string(folder) + "/data.safetensors");
  ExportedProgram program(std::string(folder) + "/net.pt2");
  const auto run = [&](const std::string& input) { return program.forward({data.read(input)}).at(0); };
  EXPECT_TRUE(at::allclose(run("input"), data.read("output"), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(run("nine"), data.read("of_nine"), 1e-5, 1e-6)) << "its batch size is dynamic";
  EXPECT_FALSE(run("input").requires_grad());

  std::unordered_map<std::string, at::Tensor> twice;
  for (const auto& name : program.constant_names()) twice[name] = data.read("weight." + name) * 2;
  ASSERT_EQ(twice.size(), 4);
  program.load_constants(twice);
  EXPECT_TRUE(at::allclose(run("input"), data.read("doubled"), 1e-5, 1e-6));

  EXPECT_THAT(error_of([&] {
                program.load_constants({{"0.weigth", at::rand({8, 4})}});
              }),
              AllOf(HasSubstr("has no constant '0.weigth'"), HasSubstr("did you mean '0.weight'")));
  twice.erase("0.bias");
  EXPECT_THAT(error_of([&] { program.load_constants(twice); }), HasSubstr("no value for the constant '0.bias'"));
  EXPECT_THAT(error_of([&] { program.forward({at::rand({4, 5})}); }), HasSubstr("does not take these inputs"));
}

}  // namespace
}  // namespace levin
