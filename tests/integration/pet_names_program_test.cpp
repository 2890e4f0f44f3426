// The example that invents names: LSTM layers come to the same loss under every strategy, and what they invent is
// printed at each epoch's end and by predict.

#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::ProgramResult;
using testing::read_text;

const std::string kPetNames = testing::build_path("bin/pet_names");

/// Short names, some with the numbers of a census behind them.
std::string made_up_names() {
  std::string names;
  for (const char* first : {"BEL", "MAX", "LUN", "ROC", "SAM", "NEL"})
    for (const char* second : {"A", "O", "IA", "KY", "MY", "NA"})
      names += std::string(first) + second + (names.size() % 2 == 0 ? "\n" : "         0.275  4.1     20\r\n");
  return names;
}

class PetNamesProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kPetNames)) GTEST_SKIP() << "there is no " << kPetNames << "; hint: build the examples";
    testing::write_text(folder_.path("names"), made_up_names());
  }

  ProgramResult run(const std::string& command, const std::vector<std::string>& more = {},
                    const std::string& root = "runs") const {
    std::vector<std::string> words = {kPetNames,
                                      command,
                                      "--config",
                                      testing::source_path("examples/pet_names/pet_names.yaml"),
                                      "--data.path=" + folder_.path("names"),
                                      "--data.val_share=0.2",
                                      "--data.global_batch_size=16",
                                      "--model.hidden=12",
                                      "--model.lr=0.02",
                                      "--trainer.max_epochs=2",
                                      "--trainer.accelerator=cpu",
                                      "--trainer.default_root_dir=" + folder_.path(root)};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_program(words, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  }
  std::string last(const std::string& root, int64_t version = 0) const {
    return folder_.path(root + "/version_" + std::to_string(version) + "/checkpoints/last");
  }

  testing::TemporaryFolder folder_;
};

TEST_F(PetNamesProgram, EveryStrategyComesToTheSameLossAndInventsNamesAfterEachEpoch) {
  const ProgramResult one = run("fit");
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_LT(value_of("val_loss", one.out), 2.89) << "ln 18: all characters alike";
  for (const char* strategy : {"dp", "ddp", "{name: sharded, stage: 3}", "{name: pipeline, micro_batches: 4}",
                               "{name: pipeline_threads, balance: [3, 4], checkpoint: always}"}) {
    const ProgramResult two =
        run("fit", {"--trainer.strategy=" + std::string(strategy), "--trainer.devices=2"}, std::string(strategy));
    ASSERT_EQ(two.status, 0) << strategy << "\n" << two.out << two.err;
    for (const char* name : {"train_loss_epoch", "val_loss"})
      EXPECT_NEAR(value_of(name, two.out), value_of(name, one.out), 1e-3) << strategy << " " << name;
    for (const char* epoch : {"epoch 0 invents", "epoch 1 invents"}) {
      EXPECT_NE(two.out.find(epoch), std::string::npos) << strategy << "\n" << two.out;
      EXPECT_EQ(two.out.find(epoch), two.out.rfind(epoch)) << strategy << ": rank 0 alone\n" << two.out;
    }
  }
}

TEST_F(PetNamesProgram, PredictInventsNamesThatBeginAsTold) {
  ASSERT_EQ(run("fit").status, 0);
  const ProgramResult predicted =
      run("predict", {"--ckpt", last("runs"), "--data.beginning=MAX", "--data.samples=4", "--model.longest=6"});
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  const std::regex name("(^|\n)MAX[A-Z]{0,6}(?=\n)");
  EXPECT_EQ(std::distance(std::sregex_iterator(predicted.out.begin(), predicted.out.end(), name), {}), 4)
      << predicted.out;
}

TEST_F(PetNamesProgram, GoesOnToTheBitWithDividedParameters) {
  const std::vector<std::string> divided = {"--trainer.strategy={name: sharded_threads, stage: 3}",
                                            "--trainer.devices=2"};
  ASSERT_EQ(run("fit", divided, "whole").status, 0);
  auto half = divided;
  half.push_back("--trainer.max_epochs=1");
  ASSERT_EQ(run("fit", half, "parts").status, 0);
  auto on = divided;
  on.push_back("--ckpt=" + last("parts"));
  const ProgramResult resumed = run("fit", on, "parts");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(read_text(last("parts", 1) + "/model.safetensors") == read_text(last("whole") + "/model.safetensors"));
}

TEST_F(PetNamesProgram, EveryMistakeInTheDataIsOneMessage) {
  const ProgramResult absent = run("fit", {"--data.path=" + folder_.path("nothing")});
  EXPECT_EQ(absent.status, 1);
  EXPECT_NE(absent.err.find("cannot read the names in " + folder_.path("nothing")), std::string::npos) << absent.err;

  testing::write_text(folder_.path("empty"), "\n 12\n");
  const ProgramResult empty = run("fit", {"--data.path=" + folder_.path("empty")});
  EXPECT_EQ(empty.status, 1);
  EXPECT_NE(empty.err.find("there is no name"), std::string::npos) << empty.err;

  const ProgramResult narrow = run("fit", {"--model.vocabulary=5"});
  EXPECT_EQ(narrow.status, 2);
  EXPECT_NE(narrow.err.find("model.vocabulary must be at least"), std::string::npos) << narrow.err;

  const ProgramResult without = run("fit", {"--data.path=null", "--data.python=/usr/bin/false"});
  EXPECT_EQ(without.status, 1);
  EXPECT_NE(without.err.find("has no package names"), std::string::npos) << without.err;
}

TEST_F(PetNamesProgram, ReadsTheListsOfThePackage) {
  const char* const python = std::getenv("LEVIN_TEST_PYTHON");
  if (python == nullptr || !fs::exists(python) || testing::run_program({python, "-c", "import names"}).status != 0)
    GTEST_SKIP() << "there is no Python with the package names; hint: scripts/bootstrap --with-test-packages";
  const std::vector<std::string> lists = {"--data.path=null", "--data.python=" + std::string(python),
                                          "--trainer.max_epochs=1", "--trainer.limit_train_batches=2",
                                          "--trainer.limit_val_batches=1"};
  const ProgramResult result = run("fit", lists);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("epoch 0 invents"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace levin
