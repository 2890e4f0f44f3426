// The example that fine-tunes: weights of another program below a new head, frozen at first, then trained with a
// learning rate of their own.

#include "../../examples/models/resnet.h"
#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <levin/levin.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
namespace models = example::models;
using ::testing::HasSubstr;
using testing::ProgramResult;

const std::string kFineTuning = testing::build_path("bin/fine_tuning");
const std::vector<std::string> kTwoRanks = {"--trainer.strategy=ddp", "--trainer.devices=2"};

class FineTuningProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kFineTuning)) GTEST_SKIP() << "there is no " << kFineTuning << "; hint: build the examples";
    for (const char* name : {"rgb", "palette"}) {
      fs::create_directories(folder_.path("images/" + std::string(name)));
      for (int i = 0; i < 24; ++i)
        fs::copy_file(testing::source_path("tests/fuzz/corpus/image/" + std::string(name) + ".png"),
                      folder_.path("images/" + std::string(name) + "/" + std::to_string(i) + ".png"));
    }
    // What timm's ResNet-18 has, the head of its 1000 classes included.
    torch::manual_seed(5);
    save_weights(*models::ResNet(models::resnet18()), folder_.path("resnet18.pth"));
  }

  ProgramResult run(const std::string& root, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {kFineTuning,
                                      "fit",
                                      "--config",
                                      testing::source_path("examples/fine_tuning/fine_tuning.yaml"),
                                      "--data.root=" + folder_.path("images"),
                                      "--data.index_folder=" + folder_.path("index"),
                                      "--data.batch_size=8",
                                      "--trainer.init_from.path=" + folder_.path("resnet18.pth"),
                                      "--trainer.max_epochs=3",
                                      "--trainer.accelerator=cpu",
                                      "--trainer.default_root_dir=" + folder_.path(root)};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_program(words, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  }
  SavedTensors saved(const std::string& root, int version = 0) const {
    return open_weights(folder_.path(root + "/version_" + std::to_string(version) + "/checkpoints/last")).tensors;
  }
  std::string last(const std::string& root) const { return folder_.path(root + "/version_0/checkpoints/last"); }

  testing::TemporaryFolder folder_;
};

bool equal(const SavedTensors& a, const std::string& name, const SavedTensors& b, const std::string& other) {
  return at::equal(a.at(name)->read_whole(), b.at(other)->read_whole());
}

TEST_F(FineTuningProgram, TheHeadIsTrainedAloneThenAllOfIt) {
  const SavedTensors original = open_weights(folder_.path("resnet18.pth")).tensors;
  const ProgramResult head = run("head", {"--trainer.max_epochs=2"});
  ASSERT_EQ(head.status, 0) << head.err;
  EXPECT_THAT(head.err, HasSubstr("120 tensors loaded, 2 dropped by rules; 2 not in the file: head.weight, head.bias"));
  const SavedTensors frozen = saved("head");
  for (const char* name : {"conv1.weight", "layer1.0.conv1.weight", "layer4.1.conv2.weight"})
    EXPECT_TRUE(equal(frozen, std::string("backbone.") + name, original, name)) << name;

  const ProgramResult all = run("all");
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.err, HasSubstr("'backbone' is trained from epoch 2 on, at first with the learning rate 5e-05"));
  const SavedTensors trained = saved("all");
  for (const char* name : {"conv1.weight", "layer1.0.conv1.weight", "layer4.1.conv2.weight"})
    EXPECT_FALSE(equal(trained, std::string("backbone.") + name, original, name)) << name;
  EXPECT_LT(value_of("train_loss", all.out), 0.5) << all.out;
}

TEST_F(FineTuningProgram, GoesOnToTheBitWhenStoppedInEitherStage) {
  // 36 images of training: five batches an epoch, or three of two ranks; the third epoch trains the backbone as well.
  for (const auto& ranks : {std::vector<std::string>(), kTwoRanks}) {
    const std::string name = ranks.empty() ? "one" : "two";
    const std::vector<int> stops = ranks.empty() ? std::vector<int>{3, 12} : std::vector<int>{2, 8};
    const ProgramResult whole = run(name, ranks);
    ASSERT_EQ(whole.status, 0) << whole.err;
    const std::string expected = testing::read_text(last(name) + "/model.safetensors");
    for (const int steps : stops) {
      const std::string root = name + std::to_string(steps);
      std::vector<std::string> words = ranks;
      words.push_back("--trainer.max_steps=" + std::to_string(steps));
      ASSERT_EQ(run(root, words).status, 0);
      words.back() = "--ckpt=" + last(root);
      const ProgramResult resumed = run(root, words);
      ASSERT_EQ(resumed.status, 0) << resumed.err;
      EXPECT_TRUE(testing::read_text(folder_.path(root + "/version_1/checkpoints/last/model.safetensors")) == expected)
          << name << " stopped after " << steps << " steps";
    }
  }
}

TEST_F(FineTuningProgram, LearningRatesMayDifferByTheNamesOfParameters) {
  const ProgramResult all =
      run("groups", {"--trainer.max_epochs=1", "--trainer.callbacks=[model_checkpoint: {save_last: true}]",
                     "--optimizer.groups=[{pattern: 'backbone.*', lr: 1e-30}]", "--optimizer.weight_decay=0"});
  ASSERT_EQ(all.status, 0) << all.err;
  const SavedTensors original = open_weights(folder_.path("resnet18.pth")).tensors;
  EXPECT_TRUE(equal(saved("groups"), "backbone.layer4.1.conv2.weight", original, "layer4.1.conv2.weight"));
}

TEST_F(FineTuningProgram, WeightsThatDoNotFitAreOneMessage) {
  const ProgramResult strict = run("strict", {"--trainer.init_from.strict=true"});
  EXPECT_EQ(strict.status, 1);
  EXPECT_THAT(strict.err, HasSubstr("2 not in the file: head.weight, head.bias"));
  testing::write_text(folder_.path("resnet18.pth"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  const ProgramResult pointer = run("pointer");
  EXPECT_EQ(pointer.status, 1);
  EXPECT_THAT(pointer.err, HasSubstr("is a pointer of Git LFS"));
}

}  // namespace
}  // namespace levin
