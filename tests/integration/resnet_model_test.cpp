// The models of examples/resnet are Keras' ResNet50V2 and ResNet152V2: as many parameters, and with the same weights
// the same logits. Keras runs on its torch backend, with random weights.

#include "../../examples/resnet/resnet_v2.h"
#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "tests/support/torch_python.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace levin {
namespace {

template <class Model>
void expect_same_as_keras(const std::string& name) {
  if (const std::string missing = testing::missing_module("keras"); !missing.empty()) GTEST_SKIP() << missing;
  const std::string packages = testing::torch_packages();
  if (packages.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  const testing::TemporaryFolder folder;
  const std::string file = folder.path("weights.safetensors");
  const auto keras =
      testing::run_program({testing::test_python(), "-W", "ignore",
                            testing::source_path("tests/integration/keras_resnet.py"), name, "128", file},
                           {.environment = {{"PYTHONPATH", packages}}});
  ASSERT_EQ(keras.status, 0) << keras.err;
  int64_t numbers = 0;
  int64_t trained = 0;
  std::istringstream(keras.out) >> numbers >> trained;

  Model model({});
  model.configure_model();
  int64_t own_trained = 0;
  for (const auto& parameter : model.parameters()) own_trained += parameter.numel();
  EXPECT_EQ(own_trained, trained);

  const torch::NoGradGuard no_gradients;
  const SafetensorsFile weights(file);
  int64_t own_numbers = 0;
  size_t copied = 0;
  for (const auto& [own, tensor] : named_tensors(model)) {
    if (own.ends_with("num_batches_tracked")) continue;  // Keras does not count them
    own_numbers += tensor.numel();
    ASSERT_TRUE(weights.contains(own)) << own;
    ASSERT_EQ(tensor.sizes().vec(), weights.shape(own)) << own;
    at::Tensor(tensor).copy_(weights.read(own));
    ++copied;
  }
  EXPECT_EQ(own_numbers, numbers);
  EXPECT_EQ(copied + 2, weights.names().size()) << "all weights, the images and the logits";

  model.eval();
  const at::Tensor expected = weights.read("logits");
  const at::Tensor logits = model.forward(weights.read("images"));
  ASSERT_EQ(logits.sizes(), expected.sizes());
  EXPECT_GT(expected.std().item<double>(), 0.05) << "logits that are all alike would show nothing";
  EXPECT_LT((logits - expected).abs().max().item<double>(), 1e-4);
}

TEST(ResNetModel, ResNet50V2IsThatOfKeras) { expect_same_as_keras<example::ResNet50V2>("ResNet50V2"); }

TEST(ResNetModel, ResNet152V2IsThatOfKeras) { expect_same_as_keras<example::ResNet152V2>("ResNet152V2"); }

TEST(ResNetModel, EnlargesImagesAndTakesGreyOnes) {
  example::ResNet50V2 model({.image_size = 64});
  model.configure_model();
  model.eval();
  const torch::NoGradGuard no_gradients;
  const at::Tensor grey = torch::rand({2, 1, 28, 28});
  const at::Tensor logits = model.forward(grey);
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{2, 10}));
  const at::Tensor large = at::upsample_bilinear2d(grey.expand({2, 3, 28, 28}), {64, 64}, /*align_corners=*/false);
  EXPECT_TRUE(at::equal(model.forward(large), logits));
}

}  // namespace
}  // namespace levin
