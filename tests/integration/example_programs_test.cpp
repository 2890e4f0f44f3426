// Every example program under every start method of ranks: a step or two on the smallest data that it takes.

#include "../data/small_tokenizer.h"
#include "../support/run_program.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;

/// What an example is run with, beside its configuration. "DATA" stands for the folder of the data.
struct Example {
  std::string config;
  std::vector<std::string> options;
  std::string strategy = "ddp";
  bool has_data_module = true;
};

const std::map<std::string, Example>& examples() {
  static const std::map<std::string, Example> all = {
      {"conv_pipeline",
       {"conv_pipeline.yaml",
        {"--data.root=DATA/fashion", "--data.val_size=0", "--data.batch_size=8", "--model.channels=2"},
        "{name: STRATEGY, micro_batches: 2}"}},
      {"fashion_mnist", {"mlp.yaml", {"--data.root=DATA/fashion", "--data.val_size=16", "--data.batch_size=8"}}},
      {"fine_tuning",
       {"fine_tuning.yaml",
        {"--data.root=DATA/images", "--data.index_folder=DATA/index", "--data.batch_size=2", "--trainer.init_from=null",
         "--data.transforms=[{resize: {size: [32, 32]}}, normalize]",
         "--data.eval_transforms=[{resize: {size: [32, 32]}}, normalize]"}}},
      {"gan", {"gan.yaml", {"--data.root=DATA/fashion", "--data.batch_size=8", "--model.channels=2"}}},
      {"image_folder",
       {"image_folder.yaml", {"--data.root=DATA/images", "--data.index_folder=DATA/index", "--data.batch_size=2"}}},
      {"language_model",
       {"small.yaml",
        {"--data.path=DATA/names", "--data.tokenizer=DATA/model/tokenizer.json", "--model.path=DATA/model/config.json",
         "--data.length=8", "--data.batch_size=4", "--trainer.val_check_interval=1.0"}}},
      {"pet_names", {"pet_names.yaml", {"--data.path=DATA/names", "--data.val_share=0.2", "--model.hidden=8"}}},
      {"preference",
       {"preference.yaml",
        {"--model={path: DATA/model/config.json, pretrained: false}", "--data.files=[DATA/pairs.jsonl]",
         "--data.val_fraction=0.25", "--data.batch_size=2", "--adapters.rank=2"}}},
      {"reinforcement", {.config = "cart_pole_dqn.yaml", .options = {"--model.warm_up=200"}, .has_data_module = false}},
      {"resnet",
       {"resnet50v2.yaml",
        {"--data={name: fashion_mnist_enlarged, root: DATA/fashion, global_batch_size: 4, val_size: 4}",
         "--model.image_size=32"}}},
      {"slow_run", {"loader_bound.yaml", {"--data.root=DATA/fashion", "--data.batch_size=8", "--model.channels=2"}}},
      {"table", {"table.yaml", {"--data.path=DATA/table.csv", "--data.ignore=[]"}}},
      {"transformer",
       {"tiny.yaml",
        {"--data.path=DATA/names", "--data.context=8", "--data.batch_size=4", "--data.val_share=0.2",
         "--model.layers=2", "--model.width=32", "--trainer.val_check_interval=1.0"}}},
  };
  return all;
}

class StartedExample : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    data_.emplace();
    // slow_run keeps 5,000 images for validation.
    testing::write_tiny_fashion(data_->path("fashion"), 5016, 8);
    for (const char* name : {"rgb", "palette"}) {
      fs::create_directories(data_->path("images/" + std::string(name)));
      for (int i = 0; i < 8; ++i)
        fs::copy_file(testing::source_path("tests/fuzz/corpus/image/" + std::string(name) + ".png"),
                      data_->path("images/" + std::string(name) + "/" + std::to_string(i) + ".png"));
    }
    std::string names;
    std::string pairs;
    std::string table = "species,length\n";
    for (const char* first : {"BEL", "MAX", "LUN", "ROC", "SAM", "NEL"})
      for (const char* second : {"A", "O", "IA", "KY", "MY", "NA"}) {
        names += std::string(first) + second + "\n";
        pairs += R"({"prompt": "Name: ", "chosen": ")" + std::string(first) + R"(", "rejected": ")" + second + "\"}\n";
        table += std::string(names.size() % 2 == 0 ? "seal," : "fox,") + std::to_string(names.size()) + "\n";
      }
    testing::write_text(data_->path("names"), names);
    testing::write_text(data_->path("pairs.jsonl"), pairs);
    fs::create_directories(data_->path("model"));
    testing::write_text(data_->path("model/tokenizer.json"), testing::small_tokenizer().dump());
    testing::write_text(data_->path("model/config.json"),
                        R"({"model_type": "llama", "vocab_size": 259, "hidden_size": 16, "intermediate_size": 24,
                            "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": true})");
    testing::write_text(data_->path("table.csv"), table);
  }
  static void TearDownTestSuite() { data_.reset(); }

  /// `start`: what a strategy's name ends with.
  void expect_to_train(const std::string& name, const std::string& start) {
    const std::string program = testing::build_path("bin/" + name);
    if (!fs::exists(program)) GTEST_SKIP() << "there is no " << program << "; hint: build the examples";
    const testing::TemporaryFolder runs;
    const Example& example = examples().at(name);
    const auto replaced = [](std::string text, const std::string& what, const std::string& with) {
      if (const size_t at = text.find(what); at != std::string::npos) text.replace(at, what.size(), with);
      return text;
    };
    std::vector<std::string> words = {program,
                                      "fit",
                                      "--config",
                                      testing::source_path("examples/" + name + "/" + example.config),
                                      "--trainer.accelerator=cpu",
                                      "--trainer.devices=2",
                                      "--trainer.max_epochs=1",
                                      "--trainer.max_steps=-1",
                                      "--trainer.limit_train_batches=2",
                                      "--trainer.limit_val_batches=1",
                                      "--trainer.log_every_n_steps=1",
                                      "--trainer.enable_progress_bar=false",
                                      "--trainer.default_root_dir=" + runs.path(),
                                      "--trainer.strategy=" + strategy_of(example, start)};
    if (example.has_data_module) words.emplace_back("--data.num_workers=0");
    for (const std::string& option : example.options) words.push_back(replaced(option, "DATA", data_->path()));
    const testing::ProgramResult result =
        testing::run_program(words, {.environment = {{"OMP_NUM_THREADS", "1"}}, .folder = runs.path()});
    EXPECT_EQ(result.status, 0) << name << start << "\n" << result.out << result.err;
    EXPECT_NE(result.err.find("training ended after 1 epoch"), std::string::npos) << result.err;
  }

 private:
  static std::string strategy_of(const Example& example, const std::string& start) {
    const size_t at = example.strategy.find("STRATEGY");
    if (at == std::string::npos) return example.strategy + start;
    std::string strategy = example.strategy;
    return strategy.replace(at, std::string("STRATEGY").size(), "pipeline" + start);
  }

  inline static std::optional<testing::TemporaryFolder> data_;
};

/// The long list has the start methods that the other tests of programs see most of.
class LongStartedExample : public StartedExample {};

TEST_P(StartedExample, TrainsInForks) { expect_to_train(GetParam(), "_spawn"); }
TEST_P(LongStartedExample, TrainsInProcesses) { expect_to_train(GetParam(), ""); }
TEST_P(LongStartedExample, TrainsInThreads) { expect_to_train(GetParam(), "_threads"); }

std::vector<std::string> example_names() {
  std::vector<std::string> names;
  for (const auto& [name, example] : examples()) names.push_back(name);
  return names;
}
std::string name_of(const ::testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Programs, StartedExample, ::testing::ValuesIn(example_names()), name_of);
INSTANTIATE_TEST_SUITE_P(Programs, LongStartedExample, ::testing::ValuesIn(example_names()), name_of);

TEST(StartedExamples, AreAllThatThereAre) {
  std::vector<std::string> there;
  // A folder with a CMakeLists.txt of its own is a project, which tests/install builds.
  for (const auto& entry : fs::directory_iterator(testing::source_path("examples")))
    if (fs::exists(entry.path() / "main.cpp") && !fs::exists(entry.path() / "CMakeLists.txt"))
      there.push_back(entry.path().filename().string());
  std::sort(there.begin(), there.end());
  EXPECT_EQ(example_names(), there);
}

}  // namespace
}  // namespace levin
