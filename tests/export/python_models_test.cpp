// The models of examples/models are those of torchvision, timm and Hugging Face: the names of all weights, and with the
// same random weights the same results.

#include "../../examples/models/gpt2.h"
#include "../../examples/models/resnet.h"
#include "../../examples/models/vit.h"
#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <gtest/gtest.h>

namespace levin {
namespace {

namespace models = example::models;

template <class Model>
void expect_same_as_python(Model model, const std::string& package, const std::string& name) {
  if (const std::string missing = testing::missing_module(package); !missing.empty()) GTEST_SKIP() << missing;
  const std::string packages = testing::torch_packages();
  if (packages.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  const std::string file = testing::fresh_folder("python_models") + "/model.safetensors";
  const auto python = testing::run_program(
      {testing::test_python(), "-W", "ignore", testing::source_path("tests/export/python_models.py"), name, file},
      {.environment = {{"PYTHONPATH", packages}, {"HF_HUB_OFFLINE", "1"}}});
  ASSERT_EQ(python.status, 0) << python.err;

  const torch::NoGradGuard no_gradients;
  const SafetensorsFile weights(file);
  size_t copied = 0;
  for (const auto& [own, tensor] : named_tensors(*model)) {
    ASSERT_TRUE(weights.contains(own)) << own;
    ASSERT_EQ(tensor.sizes().vec(), weights.shape(own)) << own;
    at::Tensor(tensor).copy_(weights.read(own));
    ++copied;
  }
  EXPECT_EQ(copied + 2, weights.names().size()) << "all weights, the input and the output";

  model->eval();
  const at::Tensor expected = weights.read("output");
  const at::Tensor result = model->forward(weights.read("input"));
  ASSERT_EQ(result.sizes(), expected.sizes());
  EXPECT_GT(expected.std().item<double>(), 0.02) << "results that are all alike would show nothing";
  EXPECT_LT((result - expected).abs().max().item<double>(), 1e-5 * std::max(1.0, expected.abs().max().item<double>()));
}

TEST(TorchvisionResNet, HasTheNamesAndResultsOfResNet18) {
  expect_same_as_python(models::ResNet(models::resnet18()), "torchvision", "resnet18");
}

TEST(TorchvisionResNet, HasTheNamesAndResultsOfResNet50) {
  expect_same_as_python(models::ResNet(models::resnet50()), "torchvision", "resnet50");
}

TEST(TimmResNet, HasTheNamesAndResultsOfResNet18) {
  expect_same_as_python(models::ResNet(models::resnet18()), "timm", "timm_resnet18");
}

TEST(TorchvisionVit, HasItsNamesAndResults) {
  expect_same_as_python(
      models::Vit(models::VitOptions{
          .image_size = 32, .patch_size = 8, .hidden = 48, .layers = 3, .heads = 4, .mlp = 96, .classes = 10}),
      "torchvision", "vit");
}

TEST(HuggingFaceGpt2, HasItsNamesAndLogits) {
  expect_same_as_python(
      models::Gpt2(models::Gpt2Options{.vocab_size = 200, .n_positions = 32, .n_embd = 48, .n_layer = 3, .n_head = 4}),
      "transformers", "gpt2");
}

}  // namespace
}  // namespace levin
