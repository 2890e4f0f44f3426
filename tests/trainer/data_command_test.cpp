#include "tests/support/run_program.h"
#include "tests/support/tiny.h"

#include <levin/core/cli/cli.h>
#include <levin/core/data/class_names.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/fetch_times.h>
#include <levin/core/data/images/image_file.h>

#include <gmock/gmock-matchers.h>

#include <filesystem>
#include <fstream>

namespace levin::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct PicturesOptions {
  int64_t examples = 40;
  bool images = true;
  static void describe(Schema<PicturesOptions>& schema) {
    schema.field("examples", &PicturesOptions::examples, "examples of the training data").at_least(0);
    schema.field("images", &PicturesOptions::images, "whether there are images");
  }
};

/// Grey images of three classes, of which the last never comes.
class Grey : public data::Dataset {
 public:
  explicit Grey(const PicturesOptions& options) : options_(options) {}
  int64_t size() const override { return options_.examples; }
  Batch get(int64_t index, data::Generator& generator) const override {
    const data::FetchPart part("draw");
    Batch example{{"label", torch::tensor(index % 2)}};
    if (options_.images) example.set("image", torch::rand({1, 6, 5}, generator.torch()) - 0.5);
    return example;
  }

 private:
  PicturesOptions options_;
};

class Pictures : public DataModule, public data::ClassNames {
 public:
  using Options = PicturesOptions;
  explicit Pictures(const Options& options) : options_(options) {}
  DataLoader train_dataloader() override {
    return DataLoader(std::make_shared<Grey>(options_), {.batch_size = 8, .shuffle = true, .drop_last = true});
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    if (const auto* image = std::as_const(batch).find("image")) batch.set("image", *image * 4);
    return batch;
  }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  Options options_;
  std::vector<std::string> classes_ = {"cat", "dog", "owl"};
};

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

class DataCommand : public ::testing::Test {
 protected:
  /// Runs the program as from a shell; pictures are in this test's folder.
  Outcome run(std::vector<std::string> words) {
    words.emplace_back("--seed=42");
    words.emplace_back("--trainer.accelerator=cpu");
    words.push_back("--trainer.default_root_dir=" + root_);
    words.insert(words.begin(), "program");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    Cli cli;
    cli.modules.add<TinyModule>("tiny", "two layers");
    cli.data.add<Pictures>("pictures", "grey ones");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = cli.run(static_cast<int>(argv.size()), argv.data());
    outcome.out = ::testing::internal::GetCapturedStdout();
    outcome.err = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  const std::string root_ = fresh_folder("data_command");
  const std::string picture_ = root_ + "/batch.png";
};

TEST_F(DataCommand, ShowsABatchItsPictureClassesAndSpeed) {
  const Outcome data = run({"data", "-o", picture_, "--seconds=0.05", "--num_workers=[0, 2]"});
  ASSERT_EQ(data.status, 0) << data.err;
  EXPECT_THAT(data.out, HasSubstr("training data: 40 examples, 5 batches of 8; prepared in "));
  EXPECT_THAT(data.out, ContainsRegex("\ntensor +shape +type +min +max +mean\n"));
  EXPECT_THAT(data.out, ContainsRegex("\nlabel +\\[8\\] +int64 +0 +1 +0\\.[0-9]+\n"));
  // After the transfer's hooks, which multiply by 4.
  EXPECT_THAT(data.out, ContainsRegex("\nimage +\\[8, 1, 6, 5\\] +float32 +-1\\.9[0-9]* +1\\.9[0-9]* "));
  EXPECT_THAT(data.out, HasSubstr("\npicture: " + picture_ + " of 8 images\n"));
  EXPECT_THAT(data.out, ContainsRegex("\nclasses of (8|16|24|32|40) examples: cat [0-9]+, dog [0-9]+, owl 0\n"));
  EXPECT_THAT(data.out, ContainsRegex("\nworkers +examples/s\n +0 +[0-9]+\n +2 +[0-9]+\n"));
  EXPECT_THAT(data.out,
              ContainsRegex("\ntime of an example in one thread +ms +%\ndraw +0\\.[0-9]+ +[0-9]+\nthe rest "));
  const auto image = data::read_image(picture_);
  EXPECT_EQ(image.sizes(), (at::IntArrayRef{3, 10, 58}));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/levin_logs"));
}

TEST_F(DataCommand, TheSectionInspectIsTheSame) {
  const std::string file = root_ + "/look.yaml";
  std::ofstream(file) << "data: {examples: 16}\ninspect: {output: " << picture_ << ", images: 3, num_workers: []}\n";
  const Outcome data = run({"data", "--config", file});
  ASSERT_EQ(data.status, 0) << data.err;
  EXPECT_THAT(data.out, HasSubstr("16 examples, 2 batches of 8"));
  EXPECT_THAT(data.out, HasSubstr("of 3 images"));
  EXPECT_THAT(data.out, Not(HasSubstr("workers")));
  EXPECT_THAT(run({"fit", "--config", file, "--print_config"}).out, HasSubstr("inspect:"));
  EXPECT_THAT(run({"fit", "--print_config"}).out, Not(HasSubstr("inspect:")));
}

TEST_F(DataCommand, WithoutImagesThereIsNoPicture) {
  const Outcome data = run({"data", "-o", picture_, "--num_workers=[]", "--data.images=false"});
  ASSERT_EQ(data.status, 0) << data.err;
  EXPECT_THAT(data.out, HasSubstr("no picture: no tensor is [N, 1 or 3, height, width]"));
  EXPECT_FALSE(std::filesystem::exists(picture_));
}

TEST_F(DataCommand, BadInputIsExplained) {
  const Outcome none = run({"data", "--stage=test", "--num_workers=[]"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("there are no test data; valid: test_dataloader() of the data module"));
  const Outcome empty = run({"data", "--data.examples=0"});
  EXPECT_EQ(empty.status, 1);
  EXPECT_THAT(empty.err, HasSubstr("the training loader gives no batch"));
  EXPECT_THAT(run({"data", "--stage=tset"}).err,
              HasSubstr("inspect.stage must be one of train, val, test, predict; got tset"));
  EXPECT_THAT(run({"data", "--num_workers=[-1]"}).err, HasSubstr("inspect.num_workers must be a list of numbers"));
  EXPECT_THAT(run({"data", "--seconds=0"}).err, HasSubstr("inspect.seconds must be above 0"));
  EXPECT_EQ(run({"data", "--seconds=0"}).status, 2);
  EXPECT_THAT(run({"data", "-o"}).err, HasSubstr("there is no file after '-o'"));
  const Outcome nowhere = run({"data", "-o", root_ + "/nowhere/batch.png", "--num_workers=[]"});
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("nowhere/batch.png"));
}

TEST_F(DataCommand, TheHelpHasItsOptionsAndThoseOfTheData) {
  const Outcome help = run({"data", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("--inspect.seconds"));
  EXPECT_THAT(help.out, HasSubstr("--data.examples"));
  EXPECT_THAT(run({"--help", "data"}).out, HasSubstr("--data.examples"));
  EXPECT_THAT(run({"--help", "inspect"}).out, HasSubstr("--inspect.stage"));
  EXPECT_THAT(run({"--help"}).out, ContainsRegex("\n  data +shows what the data are"));
}

}  // namespace
}  // namespace levin::testing
