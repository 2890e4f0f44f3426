#include <levin/core/checkpoint/inspect.h>

#include <levin/core/base/memory_size.h>
#include <levin/core/checkpoint/checkpoint.h>

#include <ATen/ops/empty.h>
#include "checkpoint_fixture.h"

#include <cmath>

namespace levin {
namespace {

class InspectTest : public testing::CheckpointTest {
 protected:
  CheckpointDifference difference(const State& a, const State& b) const {
    write_checkpoint(path("a"), a, {});
    write_checkpoint(path("b"), b, {});
    return diff_checkpoints(path("a"), path("b"));
  }
};

TEST_F(InspectTest, DescriptionHasCursorSizesAndSettings) {
  write_checkpoint(path("last"), testing::sample_tree(7),
                   {.epoch = 2, .global_step = 7, .monitor = "val_loss", .score = 0.5, .levin_version = "0.1.0"});
  const std::string text = describe_checkpoint(path("last"), false);
  for (const char* part :
       {"epoch 2, global step 7, world size 1", "by Levin 0.1.0", "val_loss = 0.5", "model.safetensors", "total",
        "model             2        16        64 B  0\n", "cursor\n  epoch = 2\n  global_step = 7\n",
        "hyper-parameters\n  hidden = 128\n", "versions\n  levin = \"0.1.0\"\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("model/net.0.weight"), std::string::npos);
  const std::string with_tensors = describe_checkpoint(path("last"), true);
  for (const char* part : {"model/net.0.weight", "F32", "[4, 3]", "48 B", "optimizers/0/state/net.0.weight/exp_avg"})
    EXPECT_NE(with_tensors.find(part), std::string::npos) << part << "\n" << with_tensors;
}

TEST_F(InspectTest, EqualTreesDoNotDiffer) {
  State tree = testing::sample_tree(1);
  tree["metrics"]["nan"] = std::nan("");
  tree["metrics"]["nan tensor"] = at::full({2}, std::nan(""));
  tree["metrics"]["none"] = at::empty({0});
  State other = tree;
  other["model"]["image"] = at::arange(24, at::kFloat).view({1, 2, 3, 4});
  tree["model"]["image"] = other["model"]["image"].as_tensor().contiguous(at::MemoryFormat::ChannelsLast);
  const auto result = difference(tree, other);
  EXPECT_TRUE(result.equal()) << result.lines.front();
  EXPECT_EQ(result.same_tensors, 7);
  EXPECT_EQ(result.same_values, 6);
}

TEST_F(InspectTest, EveryKindOfDifferenceIsNamed) {
  State a = testing::sample_tree(1);
  State b = a;
  b["model"]["net.0.weight"] = a["model"]["net.0.weight"].as_tensor() + 0.5;
  b["model"]["net.0.bias"] = at::arange(4, at::kDouble);
  a["model"]["only a"] = at::arange(2);
  b["metrics"]["only b"] = 2.0;
  a["rng"]["cpu"] = at::arange(15, at::kByte);
  b["loops"]["epoch"] = 2.0;
  b["hyper_parameters"]["hidden"] = "128";
  const auto result = difference(a, b);
  EXPECT_FALSE(result.equal());
  EXPECT_EQ(result.lines, (std::vector<std::string>{
                              "hyper_parameters/hidden: 128 -> \"128\"",
                              "loops/epoch: 2 -> 2.0",
                              "metrics/only b: only in " + path("b") + ": 2.0",
                              "model/net.0.bias: type F32 -> F64",
                              "model/net.0.weight: max abs difference 0.5",
                              "model/only a: only in " + path("a") + ": a tensor",
                              "rng/cpu: shape [15] -> [16]",
                          }));
  EXPECT_EQ(result.same_tensors, 1);
}

TEST_F(InspectTest, OfConfigurationsTheOptionsThatDifferAreNamed) {
  State a = State::map();
  a["config"] = "seed: 1\nmodel:\n  name: mlp\n  hidden: 128\ntrainer:\n  callbacks:\n    - timer: {interval: step}\n";
  a["hyper_parameters"]["options"] = "hidden: 128\nlr: 0.1\n";
  State b = State::map();
  b["config"] =
      "model:\n  name: mlp\n  hidden: 64\nseed: 1\ntrainer:\n  callbacks:\n    - timer: {interval: epoch}\n  devices: "
      "2\n";
  b["hyper_parameters"]["options"] = "lr: 0.1\nhidden: 128\n";
  const auto result = difference(a, b);
  EXPECT_EQ(result.lines, (std::vector<std::string>{
                              "config/model.hidden: 128 -> 64",
                              "config/trainer.callbacks.timer.interval: step -> epoch",
                              "config/trainer.devices: not given -> 2",
                          }));
  EXPECT_EQ(result.same_values, 1);  // the same options in another order
}

TEST_F(InspectTest, AConfigurationAgainstNoneHasEachOfItsOptions) {
  State a = State::map();
  a["config"] = "";
  State b = State::map();
  b["config"] = "seed: 1\n";
  EXPECT_EQ(difference(a, b).lines, std::vector<std::string>{"config/seed: not given -> 1"});
}

TEST_F(InspectTest, NegativeZeroIsADifference) {
  State a = State::map();
  a["model"]["x"] = at::full({1}, 0.0);
  State b = State::map();
  b["model"]["x"] = at::full({1}, -0.0);
  EXPECT_EQ(difference(a, b).lines, std::vector<std::string>{"model/x: max abs difference 0"});
}

TEST_F(InspectTest, Sizes) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(uint64_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace levin
