#include "tests/support/tiny.h"

#include <levin/core/cli/cli.h>
#include <levin/core/data/data_module.h>

#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <fstream>
#include <optional>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct TunedPointsOptions {
  int64_t batch_size = 4;
  std::optional<int64_t> global_batch_size;
  static void describe(Schema<TunedPointsOptions>& schema) {
    schema.field("batch_size", &TunedPointsOptions::batch_size, "examples in a batch of one rank").at_least(1);
    schema.field("global_batch_size", &TunedPointsOptions::global_batch_size, "of all ranks").at_least(1);
  }
};

class TunedPoints : public DataModule {
 public:
  using Options = TunedPointsOptions;
  explicit TunedPoints(const Options& options) : options_(options) {}
  DataLoader train_dataloader() override {
    return DataLoader(
        tiny_dataset(40),
        {.batch_size = options_.batch_size, .shuffle = true, .global_batch_size = options_.global_batch_size});
  }

 private:
  Options options_;
};

struct TuneOutcome {
  int status = 0;
  std::string out;
  std::string err;
};

class TuneCommand : public ::testing::Test {
 protected:
  /// Runs the program as from a shell, in this test's folder.
  TuneOutcome run(std::vector<std::string> words) {
    for (const char* word : {"--seed=42", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false",
                             "--trainer.enable_model_summary=false", "--trainer.logger=csv", "--trainer.max_epochs=1"})
      words.emplace_back(word);
    words.push_back("--trainer.default_root_dir=" + root_);
    words.insert(words.begin(), "program");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    Cli cli;
    cli.modules.add<TinyModule>("tiny", "two layers");
    cli.data.add<TunedPoints>("points", "points and their sums");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    TuneOutcome outcome;
    outcome.status = cli.run(static_cast<int>(argv.size()), argv.data());
    outcome.out = ::testing::internal::GetCapturedStdout();
    outcome.err = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  const std::string root_ = fresh_folder("tune");
};

TEST_F(TuneCommand, SuggestsALearningRateByDefaultAndSavesNoCheckpoint) {
  const TuneOutcome tuned = run({"tune"});
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_THAT(tuned.out, HasSubstr("learning_rate_finder: "));
  EXPECT_THAT(tuned.out, HasSubstr("to set it: --model.lr="));
  EXPECT_THAT(tuned.out, HasSubstr(root_ + "/version_0/learning_rate_finder.svg"));
  std::vector<std::string> written;
  for (const auto& entry : std::filesystem::directory_iterator(root_ + "/version_0"))
    written.push_back(entry.path().filename().string());
  EXPECT_THAT(written,
              ::testing::UnorderedElementsAre("config.yaml", "learning_rate_finder.svg", "learning_rate_finder.csv"));
}

TEST_F(TuneCommand, RunsTheFindersOfTheConfiguration) {
  const std::string file = root_ + "/tune.yaml";
  std::ofstream(file) << "trainer:\n  callbacks:\n    - batch_size_finder: {mode: binsearch, max_val: 16}\n"
                         "    - learning_rate_finder: {min_lr: 1.0e-4, num_training_steps: 30}\n"
                         "    - timer\n";
  const TuneOutcome tuned = run({"tune", "--config", file});
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_THAT(tuned.out, HasSubstr("batch_size_finder: 16 examples in a batch of one rank"));
  EXPECT_THAT(tuned.out, HasSubstr("to set it: --data.batch_size=16, or in YAML data: {batch_size: 16}"));
  EXPECT_THAT(tuned.out, HasSubstr("to set it: --model.lr="));
  // What it prints is what fit finds with the same configuration, and can be given to it.
  const size_t begin = tuned.out.find("--model.lr=");
  const std::string setting = tuned.out.substr(begin, tuned.out.find(',', begin) - begin);
  const TuneOutcome fit = run({"fit", "--config", file});
  EXPECT_THAT(fit.err, HasSubstr(setting));
  EXPECT_EQ(run({"fit", setting, "--data.batch_size=16"}).status, 0);
}

TEST_F(TuneCommand, WorksWithRanks) {
  for (const char* strategy : {"ddp_threads", "ddp_spawn"}) {
    const TuneOutcome tuned = run({"tune", std::string("--trainer.strategy=") + strategy, "--trainer.devices=2",
                                   "--data.global_batch_size=8", "--trainer.callbacks.batch_size_finder.max_val=8",
                                   "--trainer.callbacks.learning_rate_finder.num_training_steps=30"});
    ASSERT_EQ(tuned.status, 0) << tuned.err;
    EXPECT_THAT(tuned.out, HasSubstr("to set it: --data.global_batch_size=16"));
    EXPECT_THAT(tuned.out, HasSubstr("to set it: --model.lr="));
  }
}

TEST_F(TuneCommand, NamesTheOptionThatItWasTold) {
  const TuneOutcome other = run({"tune", "--trainer.callbacks.learning_rate_finder.attr_name=rate"});
  EXPECT_THAT(other.err, HasSubstr("attr_name is 'rate', but the model has no such option"));
  EXPECT_THAT(run({"tune", "--trainer.callbacks.learning_rate_finder.num_training_steps=5"}).out,
              HasSubstr("nothing found, and the learning rate stays as it is"));
}

TEST_F(TuneCommand, BadOptionsAreErrorsOfTheConfiguration) {
  const TuneOutcome wrong = run({"tune", "--trainer.callbacks.learning_rate_finder.min_lr=2"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("max_lr must be greater than"));
}

}  // namespace
}  // namespace levin::testing
