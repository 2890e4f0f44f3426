// Built-in rules: models of Hugging Face as modules in C++, and back.

#include "../../examples/models/resnet.h"
#include "../../examples/models/vit.h"
#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/interfaces/load_weights.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <string>

namespace levin {
namespace {

namespace models = example::models;

/// BERT's blocks.
struct EncoderImpl : torch::nn::Module {
  EncoderImpl() {
    const auto layer =
        torch::nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(0).activation(torch::kGELU);
    encoder = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2)));
  }
  at::Tensor forward(const at::Tensor& x) { return encoder(x.transpose(0, 1)).transpose(0, 1); }
  torch::nn::TransformerEncoder encoder{nullptr};
};
TORCH_MODULE(Encoder);

class HuggingFaceRules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("transformers"); !missing.empty()) GTEST_SKIP() << missing;
    torch_packages_ = testing::torch_packages();
    if (torch_packages_.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  }
  void python(const std::string& command) const {
    const auto run = testing::run_program({testing::test_python(), "-W", "ignore",
                                           testing::source_path("tests/export/hugging_face.py"), command, folder_},
                                          {.environment = {{"PYTHONPATH", torch_packages_}, {"HF_HUB_OFFLINE", "1"}}});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
  }

  const std::string folder_ = testing::fresh_folder("hugging_face");

 private:
  std::string torch_packages_;
};

/// What the weights in `folder` make of the input there is what they made of it in Python.
template <class Model>
void expect_result(const std::string& folder, Model model, bool strict = true) {
  load_weights(*model, {.path = folder + "/there.safetensors", .strict = strict});
  model->eval();
  const torch::NoGradGuard no_gradients;
  const SafetensorsFile results(folder + "/results.safetensors");
  const at::Tensor expected = results.read("output");
  const at::Tensor result = model->forward(results.read("input"));
  EXPECT_GT(expected.std().item<double>(), 0.01) << "results that are all alike would show nothing";
  EXPECT_LT((result - expected).abs().max().item<double>(), 1e-5 * std::max(1.0, expected.abs().max().item<double>()));
}

TEST_F(HuggingFaceRules, LeadToTheModulesAndBack) {
  python("make");
  if (HasFatalFailure()) return;
  for (const std::string name : {"bert", "vit", "gpt2", "resnet18", "resnet50"}) {
    SCOPED_TRACE(name);
    const std::string folder = folder_ + "/" + name;
    const WeightRules rules(name.starts_with("resnet") ? "resnet" : name.c_str());
    convert_weights(folder + "/given", folder + "/there.safetensors", WeightsFormat::kSafetensors, {.rules = rules});
    convert_weights(folder + "/there.safetensors", folder + "/back", WeightsFormat::kHuggingFace,
                    {.rules = rules.reversed(), .config = folder + "/given/config.json"});
  }
  python("check");

  expect_result(folder_ + "/bert", Encoder(), /*strict=*/false);  // the file has the embeddings too
  expect_result(
      folder_ + "/vit",
      models::Vit(models::VitOptions{
          .image_size = 32, .patch_size = 8, .hidden = 32, .layers = 2, .heads = 4, .mlp = 64, .classes = 10}));
  expect_result(folder_ + "/resnet18", models::ResNet(models::resnet18(10)));
  expect_result(folder_ + "/resnet50", models::ResNet(models::resnet50(10)));
  const std::string gpt2_weight = "h.1.attn.c_attn.weight";
  EXPECT_TRUE(at::equal(SafetensorsFile(folder_ + "/gpt2/there.safetensors").read(gpt2_weight),
                        SafetensorsFile(folder_ + "/gpt2/given/model.safetensors").read(gpt2_weight).t()))
      << "as torch::nn::Linear has it";
}

}  // namespace
}  // namespace levin
