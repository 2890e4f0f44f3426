#include <levin/core/cli/cli_results.h>

#include "../support/captured_log.h"
#include "../support/run_program.h"
#include "../support/tiny.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/checkpoint/safetensors.h>

namespace levin {
namespace {

using testing::fresh_folder;

TEST(CliResults, EveryLoaderHasAFile) {
  const std::string folder = fresh_folder("cli_results");
  const std::string report =
      save_predictions({{{{"x", at::ones({3, 2})}}, {{"x", at::ones({1, 4})}}}, {{{"x", at::ones({5})}}}}, folder);
  EXPECT_EQ(report, "predictions  " + folder + "/predictions_0.safetensors  x [4, 4], x.lengths [4]\n" +
                        "predictions  " + folder + "/predictions_1.safetensors  x [5]\n");
  const SafetensorsFile file(folder + "/predictions_0.safetensors");
  EXPECT_TRUE(file.read("x.lengths").equal(at::tensor({2, 2, 2, 4}, at::kLong)));
}

TEST(CliResults, WhatAFileCannotHoldIsNamedAfterTheRestIsSaved) {
  const std::string folder = fresh_folder("cli_results");
  const Batch first{{"good", at::ones({2})}, {"bad", at::ones({2}, at::kComplexDouble)}};
  try {
    save_predictions({{first}, {{{"x", at::ones({5})}}}}, folder);
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("cannot save tensor 'bad'; got element type ComplexDouble"), message.npos) << message;
    EXPECT_NE(message.find("saved is:\n    predictions  " + folder + "/predictions_0.safetensors  good [2]"),
              message.npos)
        << message;
  }
  EXPECT_EQ(SafetensorsFile(folder + "/predictions_0.safetensors").names(), std::vector<std::string>{"good"});
  EXPECT_TRUE(std::filesystem::exists(folder + "/predictions_1.safetensors"));
}

TEST(CliResults, AFieldInPiecesIsSavedWithAWarning) {
  const std::string folder = fresh_folder("cli_results");
  const testing::CapturedLog log;
  const std::string report = save_predictions({{{{"x", at::ones({3, 2})}}, {{"x", at::ones({1})}}}}, folder);
  EXPECT_NE(report.find("x.batch_0 [3, 2], x.batch_1 [1]"), std::string::npos) << report;
  EXPECT_NE(log.text().find("predictions: 'x' does not fit into one tensor"), std::string::npos) << log.text();
}

TEST(CliResults, TextsAreATableBesideTheTensors) {
  const std::string folder = fresh_folder("cli_results");
  const auto batch = [](int64_t rows, const std::vector<std::string>& names) {
    Batch batch{{"x", at::ones({rows, 2})}};
    if (!names.empty()) batch.set_texts("name", names);
    return batch;
  };
  Batch tagged = batch(1, {"d"});
  tagged.set_texts("tag", {"last"});
  const std::string report = save_predictions({{batch(2, {"a", "b \"c\", d"}), batch(1, {}), tagged}}, folder);
  EXPECT_EQ(report, "predictions  " + folder + "/predictions.safetensors  x [4, 2], x.rows [3]\n" + "predictions  " +
                        folder + "/predictions.csv  name (4 texts), tag (4 texts)\n");
  EXPECT_EQ(testing::read_text(folder + "/predictions.csv"), "name,tag\na,\n\"b \"\"c\"\", d\",\n,\nd,last\n")
      << "a row for each of the tensors'";

  Batch texts;
  texts.set_texts("caption", {"a dog", "a cat"});
  EXPECT_EQ(save_predictions({{texts}}, ""), "predictions (not saved)  caption (2 texts)\n");
  const std::string alone = fresh_folder("cli_results");
  EXPECT_EQ(save_predictions({{texts}}, alone), "predictions  " + alone + "/predictions.csv  caption (2 texts)\n");
}

TEST(CliResults, NoPredictionsSayWhy) {
  EXPECT_EQ(save_predictions({{}}, ""), "no predictions: the loader gave no batch\n");
  EXPECT_EQ(save_predictions({{{}, {}}, {{{"x", at::ones({2})}}}}, ""),
            "no predictions_0: predict_step returned nothing\npredictions_1 (not saved)  x [2]\n");
}

TEST(CliResults, WithoutAMonitorNoCheckpointIsTheBest) {
  const auto ending = [](const std::string& monitor) {
    TrainerOptions options = testing::quiet(1);
    options.enable_checkpointing = true;
    options.default_root_dir = fresh_folder("cli_results");
    options.callbacks = {make<ModelCheckpoint>({.monitor = monitor})};
    Trainer trainer(options);
    trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader(), testing::tiny_loader());
    return fit_ending(trainer);
  };
  EXPECT_NE(ending("val_loss").find("best checkpoint"), std::string::npos);
  const std::string without = ending("");
  EXPECT_EQ(without.find("best checkpoint"), std::string::npos) << without;
  EXPECT_NE(without.find("last checkpoint"), std::string::npos) << without;
}

}  // namespace
}  // namespace levin
