// Runs the programs that the pages for users show. That the other blocks compile is known once this is linked.

#include "../integration/tiny_fashion.h"
#include "../support/run_program.h"
#include "tests/support/tree.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// tests/usage/extract_blocks.py makes them of the pages.
namespace pages {
namespace readme {
int program_main(int argc, char** argv);
}
namespace usage {
int program_main(int argc, char** argv);
}
namespace extending {
int program_main(int argc, char** argv);
}
namespace modules {
int program_main(int argc, char** argv);
}
namespace preparing_your_code {
int program_main(int argc, char** argv);
}
namespace data {
int program_main();
}
namespace trainer {
int program_main();
}
namespace embedding {
int program_main();
}
namespace engine {
int program_main();
}
namespace simulations {
int program_main();
}
}  // namespace pages

namespace levin {
namespace {

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

class Pages : public ::testing::Test {
 protected:
  Outcome run(int (*program)(int, char**), std::vector<std::string> words) const {
    words.insert(words.begin(), "program");
    words.push_back("--trainer.default_root_dir=" + folder_.path("runs"));
    words.emplace_back("--trainer.accelerator=cpu");
    words.insert(words.begin() + 2, "--trainer.max_epochs=2");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    return captured([&] { return program(static_cast<int>(argv.size()), argv.data()); });
  }
  /// Of a program that writes to the folder in which it runs.
  Outcome run_in_folder(int (*program)()) const {
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
    const Outcome outcome = captured(program);
    std::filesystem::current_path(before);
    return outcome;
  }
  static Outcome captured(const std::function<int()>& program) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = program();
    std::string out = ::testing::internal::GetCapturedStdout();
    return {status, std::move(out), ::testing::internal::GetCapturedStderr()};
  }
  /// The page's YAML block that begins with `# name`, as a file.
  std::string yaml_of(const std::string& page, const std::string& name) const {
    const std::string text = testing::read_text(testing::source_path("" + page));
    const std::string opening = "```yaml\n# " + name + "\n";
    const size_t begin = text.find(opening);
    EXPECT_NE(begin, std::string::npos) << page;
    if (begin == std::string::npos) return "";
    const size_t end = text.find("```", begin + opening.size());
    testing::write_text(folder_.path(name), text.substr(begin + 8, end - begin - 8));
    return folder_.path(name);
  }
  std::vector<std::string> fit(const std::string& page) const {
    testing::write_tiny_fashion(folder_.path("data"), 60, 20);
    return {"fit", "--config=" + yaml_of(page, "mlp.yaml"), "--data.root=" + folder_.path("data"),
            "--data.val_size=20"};
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Pages, Readme) {
  const Outcome outcome = run(pages::readme::program_main, fit("README.md"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("best checkpoint"), std::string::npos) << outcome.out;
}

TEST_F(Pages, Usage) {
  const Outcome outcome = run(pages::usage::program_main, fit("docs/usage.md"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  // The page's own callback.
  EXPECT_NE(outcome.out.find("epoch 0 loss "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("epoch 1 loss "), std::string::npos) << outcome.out;
}

TEST_F(Pages, Extending) {
  const Outcome outcome =
      run(pages::extending::program_main,
          {"fit", "--trainer.callbacks=[step_counter]", "--trainer.logger=[csv, lines]",
           "--trainer.strategy={name: local_sgd, start_method: thread, period: 4}", "--trainer.devices=2",
           "--trainer.log_every_n_steps=10", "--trainer.precision={name: 16-static, scale: 256}"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(testing::read_text(folder_.path("runs/version_0/lines.txt")).find("step 10 train_loss "),
            std::string::npos);
}

TEST_F(Pages, Modules) {
  const Outcome outcome = run(pages::modules::program_main,
                              {"fit", "--trainer.max_epochs=20", "--trainer.callbacks=[best_error]", "--seed=1"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const size_t found = outcome.out.find("best error ");
  ASSERT_NE(found, std::string::npos) << outcome.out;
  EXPECT_LT(std::stod(outcome.out.substr(found + 11)), 0.1) << "frequencies are 0.1 to 1";

  // The same on two ranks.
  const Outcome two = run(pages::modules::program_main, {"fit", "--trainer.callbacks=[best_error]",
                                                         "--trainer.strategy=ddp_threads", "--trainer.devices=2"});
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_NE(two.out.find("best error "), std::string::npos) << two.out;
}

TEST_F(Pages, PreparingYourCode) {
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    const std::string devices = strategy == std::string("ddp_threads") ? "2" : "1";
    const Outcome outcome = run(pages::preparing_your_code::program_main,
                                {"fit", "--trainer.max_epochs=20", std::string("--trainer.strategy=") + strategy,
                                 "--trainer.devices=" + devices, "--trainer.precision=bf16-mixed", "--seed=1"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const size_t found = outcome.out.find("val_loss ");
    ASSERT_NE(found, std::string::npos) << outcome.out;
    EXPECT_LT(std::stod(outcome.out.substr(found + 9)), 0.1) << "eight copies of one number, with noise of 0.1";
  }
}

TEST_F(Pages, Data) {
  const Outcome outcome = run_in_folder(pages::data::program_main);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("32 waves, the longest of ")) << outcome.out;
  EXPECT_NE(outcome.out.find("\n4 waves, the longest of "), std::string::npos) << outcome.out;
}

TEST_F(Pages, Trainer) {
  const Outcome outcome = run_in_folder(pages::trainer::program_main);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_TRUE(outcome.out.starts_with("accuracy ")) << outcome.out;
  EXPECT_GT(std::stod(outcome.out.substr(9)), 0.8);
  EXPECT_NE(outcome.out.find(" of 512 are right\n"), std::string::npos) << outcome.out;
}

TEST_F(Pages, Embedding) {
  const Outcome outcome = run_in_folder(pages::embedding::program_main);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "") << "the sink has the messages";
  EXPECT_NE(outcome.out.find("training was asked to stop: there are enough steps\nfinished after "), std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("to go on from: runs/version_0/checkpoints/last\n"), std::string::npos) << outcome.out;
}

TEST_F(Pages, Engine) {
  const Outcome outcome = run_in_folder(pages::engine::program_main);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(outcome.out.starts_with("100: ")) << outcome.out;
  constexpr std::string_view kLast = "\n300: ";
  const size_t last = outcome.out.find(kLast);
  ASSERT_NE(last, std::string::npos) << outcome.out;
  EXPECT_LT(std::stod(outcome.out.substr(last + kLast.size())), 1e-6);
}

TEST_F(Pages, Simulations) {
  const Outcome outcome = run_in_folder(pages::simulations::program_main);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.ends_with("trained for 200 steps\n")) << outcome.out;
}

}  // namespace
}  // namespace levin
