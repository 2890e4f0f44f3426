#pragma once

#include "../support/faulty_file_system.h"
#include "../support/run_program.h"
#include "tiny_fashion.h"

#include <levin/levin.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

/// A small program that can be run with mistakes of every kind, and what must hold for its messages.
namespace levin::testing {

namespace F = torch::nn::functional;
namespace fs = std::filesystem;

inline constexpr int kFailure = 1;
inline constexpr int kUsageError = 2;

struct LinearOptions {
  int64_t hidden = 4;
  double lr = 0.01;
  std::string trouble = "none";

  static void describe(Schema<LinearOptions>& schema) {
    schema.field("hidden", &LinearOptions::hidden, "width of the hidden layer").at_least(1);
    schema.field("lr", &LinearOptions::lr, "learning rate").above(0);
    schema.field("trouble", &LinearOptions::trouble, "what goes wrong")
        .one_of({"none", "exception", "libtorch", "nan"});
  }
};

class Linear : public Module {
 public:
  using Options = LinearOptions;
  explicit Linear(const Options& options) : options_(options) {
    net_ = register_module("net", Sequential(torch::nn::Flatten(), torch::nn::Linear(784, options.hidden),
                                             torch::nn::Linear(options.hidden, 10)));
  }

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (options_.trouble == "exception" && batch_idx == 2) throw std::out_of_range("the user's own message");
    if (options_.trouble == "libtorch") net_(torch::zeros({1, 3}));
    auto loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
    log("train_loss", loss);
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = F::cross_entropy(net_(batch["image"]), batch["label"]);
    if (options_.trouble == "nan") loss = loss * std::numeric_limits<double>::quiet_NaN();
    log("val_loss", loss);
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t /*batch_idx*/) override { return {{"class", net_(batch["image"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr});
  }

 private:
  Options options_;
  Sequential net_{nullptr};
};

/// Makes the file system fail while the third batch ends; says whether on_exception ran.
class Saboteur : public Callback {
 public:
  static inline FaultyFileSystem* files = nullptr;
  static inline int64_t bytes = 0;
  static inline int64_t exceptions = 0;

  void on_train_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t batch_idx) override {
    if (files != nullptr && batch_idx == 2) files->fail_after_bytes(bytes);
  }
  void on_exception(Trainer&, Module&, const std::exception_ptr&) override { ++exceptions; }
};

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;

  /// The lines that begin with "error: ".
  std::vector<std::string> errors() const {
    std::vector<std::string> found;
    std::stringstream lines(err);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("error: ")) found.push_back(line);
    return found;
  }
};

class BadInput : public ::testing::Test {
 protected:
  void SetUp() override {
    write_tiny_fashion(data(), 60, 20);
    Saboteur::exceptions = 0;
  }

  std::string data() const { return folder_.path("data"); }
  std::string root() const { return folder_.path("runs"); }
  std::string checkpoint(const std::string& name, int64_t version = 0) const {
    return root() + "/version_" + std::to_string(version) + "/checkpoints/" + name;
  }

  /// Runs a program with this model as from a shell.
  Outcome run(std::vector<std::string> words) const {
    words.insert(words.begin(), "program");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    Cli cli;
    cli.modules.add<Linear>("linear");
    cli.data.add<data::FashionMnist>("fashion_mnist");
    if (cli.callbacks.find("saboteur") == nullptr) cli.callbacks.add<Saboteur>("saboteur");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = cli.run(static_cast<int>(argv.size()), argv.data());
    outcome.out = ::testing::internal::GetCapturedStdout();
    outcome.err = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  /// One epoch of 5 small batches in this test's folder; later words win.
  std::vector<std::string> small(const std::string& command, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {command,
                                      "--seed=1",
                                      "--data.root=" + data(),
                                      "--data.val_size=20",
                                      "--data.batch_size=8",
                                      "--trainer.default_root_dir=" + root(),
                                      "--trainer.accelerator=cpu",
                                      "--trainer.max_epochs=1",
                                      "--trainer.num_sanity_val_steps=0",
                                      "--trainer.enable_progress_bar=false",
                                      "--trainer.enable_model_summary=false",
                                      "--trainer.logger=csv"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome run_small(const std::string& command, const std::vector<std::string>& more = {}) const {
    return run(small(command, more));
  }
  /// Leaves the checkpoints step=1, step=2, ... step=5.
  void save_every_step() const {
    const Outcome fit = run_small("fit", {kEveryStep});
    ASSERT_EQ(fit.status, 0) << fit.err;
    ASSERT_TRUE(fs::exists(checkpoint("epoch=0-step=5")));
  }

  /// One message, which has all the parts, where it happened ("  in training_step of ...") at most after it, and no
  /// stack trace.
  void expect_error(const Outcome& outcome, int status, const std::vector<std::string>& parts) const {
    EXPECT_EQ(outcome.status, status) << outcome.err;
    const auto errors = outcome.errors();
    ASSERT_EQ(errors.size(), 1u) << outcome.err;
    for (const auto& part : parts)
      EXPECT_NE(errors.front().find(part), std::string::npos) << part << "\n" << outcome.err;
    const std::string rest = outcome.err.substr(outcome.err.find(errors.front()) + errors.front().size());
    EXPECT_TRUE(rest == "\n" || rest.starts_with("\n  in ")) << "the message is not the last one\n" << outcome.err;
    for (const char* trace : {"frame #", "Exception raised from", "terminate called"})
      EXPECT_EQ(outcome.err.find(trace), std::string::npos) << outcome.err;
    for (const auto& entry : unfinished()) ADD_FAILURE() << entry << " was left behind";
  }
  /// A wrong configuration: the message is all there is, and no file was made.
  void expect_config_error(const std::vector<std::string>& more, const std::vector<std::string>& parts) const {
    const Outcome outcome = run_small("fit", more);
    SCOPED_TRACE(more.empty() ? "" : more.back());
    expect_error(outcome, kUsageError, parts);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(fs::exists(root()));
  }
  void expect_bad_yaml(const std::string& yaml, const std::vector<std::string>& parts) const {
    write_text(folder_.path("bad.yaml"), yaml);
    expect_config_error({"--config=" + folder_.path("bad.yaml")}, parts);
  }

  /// Files and folders that only exist while something is being written.
  std::vector<std::string> unfinished() const {
    std::vector<std::string> found;
    if (!fs::exists(root())) return found;
    for (const auto& entry : fs::recursive_directory_iterator(root())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".") || name.find("unfinished") != std::string::npos) found.push_back(entry.path().string());
    }
    return found;
  }

  static constexpr const char* kEveryStep =
      "--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 1, save_top_k: -1}}]";
  TemporaryFolder folder_;
};

}  // namespace levin::testing
