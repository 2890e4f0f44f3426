// The example that learns a table: categories and missing values, as classes and as a regression, and mistakes in
// files.

#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ProgramResult;

const std::string kTable = testing::build_path("bin/table");

/// Animals whose species follows from their length and home; some lengths and homes are missing.
std::string animals(bool with_species) {
  std::string text = with_species ? "species,home,length,weight,year\n" : "home,length,weight,year\n";
  for (int i = 0; i < 120; ++i) {
    const int length = 10 + (i * 37) % 40;
    const bool at_sea = i % 3 == 0;
    if (with_species) text += at_sea ? "seal," : length > 30 ? "\"bear, brown\"," : "fox,";
    text += i % 11 == 0 ? "NA," : at_sea ? "sea," : "land,";
    text +=
        (i % 13 == 0 && at_sea ? std::string() : std::to_string(length)) + "," + std::to_string(length * 3) + ",2007\n";
  }
  return text;
}

class TableProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kTable)) GTEST_SKIP() << "there is no " << kTable << "; hint: build the examples";
    testing::write_text(folder_.path("animals.csv"), animals(true));
  }

  ProgramResult run(const std::string& command, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {kTable,
                                      command,
                                      "--config",
                                      testing::source_path("examples/table/table.yaml"),
                                      "--data.path=" + folder_.path("animals.csv"),
                                      "--trainer.accelerator=cpu",
                                      "--trainer.default_root_dir=" + folder_.path("runs")};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_program(words, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  }

  testing::TemporaryFolder folder_;
};

TEST_F(TableProgram, LearnsClassesAndPredictsWithoutThem) {
  const ProgramResult fitted = run("fit", {"--trainer.callbacks=[model_checkpoint: {save_last: true}]"});
  ASSERT_EQ(fitted.status, 0) << fitted.err;
  EXPECT_GT(value_of("val_acc", fitted.out), 0.9) << fitted.out;
  testing::write_text(folder_.path("more.csv"), animals(false));
  const ProgramResult predicted = run("predict", {"--data.test_path=" + folder_.path("more.csv"),
                                                  "--ckpt=" + folder_.path("runs/version_0/checkpoints/last")});
  EXPECT_EQ(predicted.status, 0) << predicted.err;
}

TEST_F(TableProgram, IsExportedWithTheLayersThatItsDataAskFor) {
  ASSERT_EQ(run("fit", {"--trainer.max_epochs=1"}).status, 0);
  const std::string best =
      folder_.path("runs/version_0/checkpoints/") +
      fs::directory_iterator(folder_.path("runs/version_0/checkpoints"))->path().filename().string();
  // There are no prediction and test data: the example is of validation.
  for (const char* name : {"table.onnx", "table.pt"}) {
    const ProgramResult exported = run("export", {"--ckpt=" + best, "-o", folder_.path(name)});
    ASSERT_EQ(exported.status, 0) << exported.err;
    EXPECT_EQ(exported.out,
              "wrote " + folder_.path(name) + ": prediction of numbers, missing, categories, with any batch size\n");
    EXPECT_TRUE(fs::exists(folder_.path(name)));
  }
}

TEST_F(TableProgram, LearnsANumberOnTwoRanks) {
  const ProgramResult fitted =
      run("fit", {"--data.target=weight", "--trainer.devices=2", "--trainer.strategy=ddp_threads", "--model.lr=0.02",
                  "--data.ignore=[year, species]", "--trainer.max_epochs=30"});
  ASSERT_EQ(fitted.status, 0) << fitted.err;
  EXPECT_LT(value_of("val_loss", fitted.out), 600) << "weights from 30 to 147 have a variance of 1200\n" << fitted.out;
}

TEST_F(TableProgram, EveryMistakeInTheDataIsOneMessage) {
  const auto error = [&](const std::vector<std::string>& more, int status) {
    const ProgramResult result = run("fit", more);
    EXPECT_EQ(result.status, status) << result.out;
    return result.err;
  };
  EXPECT_THAT(error({"--data.path=" + folder_.path("none.csv")}, 1), HasSubstr(folder_.path("none.csv")));
  EXPECT_THAT(error({"--data.target=specie"}, 1), HasSubstr("has no column 'specie'; did you mean 'species'?"));
  EXPECT_THAT(error({"--data.target=length"}, 1), HasSubstr("the target 'length' is missing"));
  EXPECT_THAT(error({"--data.delimiter=ab"}, 2), HasSubstr("data.delimiter must be one byte"));
  testing::write_text(folder_.path("ragged.csv"), animals(true) + "fox,land\n");
  EXPECT_THAT(error({"--data.path=" + folder_.path("ragged.csv")}, 1),
              HasSubstr("ragged.csv:122: the row has 2 fields, the header 5"));
}

}  // namespace
}  // namespace levin
