// What a program adds to its command line: defaults, links, commands and hooks of its own, variables, the schema for
// editors, completion, and configurations that LightningCLI wrote.

#include <levin/core/base/error.h>
#include <levin/core/cli/cli.h>
#include <levin/core/data/data_module.h>
#include <levin/core/trainer/trainer.h>

#include "../support/run_program.h"
#include "../support/tiny.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::tiny_loader;
using testing::TinyModule;

struct SumsOptions {
  int64_t features = 8;
  static void describe(Schema<SumsOptions>& schema) {
    schema.field("features", &SumsOptions::features, "hidden features that suit these data").at_least(1);
  }
};

class LinkedSums : public DataModule {
 public:
  using Options = SumsOptions;
  explicit LinkedSums(const Options& /*options*/) {}
  DataLoader train_dataloader() override { return tiny_loader(); }
  DataLoaders val_dataloader() override { return tiny_loader(); }
};

struct ProgramOutcome {
  int status = 0;
  std::string out = {};
  std::string err = {};
};

std::vector<char*> argv_of(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  return argv;
}

ProgramOutcome run(std::vector<std::string> words, const std::function<void(Cli&)>& extend = {}) {
  words.insert(words.begin(), "program");
  Cli cli;
  cli.modules.add<TinyModule>("tiny", "two layers");
  cli.data.add<LinkedSums>("sums", "points and their sums");
  if (extend) extend(cli);
  const auto argv = argv_of(words);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  ProgramOutcome outcome;
  outcome.status = cli.run(static_cast<int>(argv.size()), const_cast<char**>(argv.data()));
  // Comments of --print_config stand in a column.
  outcome.out = std::regex_replace(::testing::internal::GetCapturedStdout(), std::regex("  +#"), "  #");
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

const std::vector<std::string> kSmall = {"--seed=1",
                                         "--trainer.accelerator=cpu",
                                         "--trainer.max_epochs=1",
                                         "--trainer.logger=false",
                                         "--trainer.enable_checkpointing=false",
                                         "--trainer.enable_progress_bar=false",
                                         "--trainer.enable_model_summary=false"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Sets a variable for a scope.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), /*replace=*/1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

TEST(CliProgram, DefaultsOfTheProgramAreBelowFilesVariablesAndTheCommandLine) {
  const std::string file = testing::fresh_folder("cli") + "/config.yaml";
  std::ofstream(file) << "trainer: {max_epochs: 3, min_epochs: 2}\n";
  const Variable epochs("LEVIN_TRAINER__MAX_EPOCHS", "4");
  const Variable steps("LEVIN_TRAINER__CALLBACKS", "[early_stopping: {monitor: val_loss}]");
  const auto defaults = [](Cli& cli) { cli.defaults = "trainer: {max_epochs: 2, log_every_n_steps: 7}\nseed: 5\n"; };
  const auto printed = [&](const std::vector<std::string>& words) {
    return run(with({"--print_config"}, words), defaults).out;
  };
  EXPECT_THAT(printed({}), HasSubstr("max_epochs: 4  # LEVIN_TRAINER__MAX_EPOCHS"));
  EXPECT_THAT(printed({}), HasSubstr("log_every_n_steps: 7  # the program's defaults"));
  EXPECT_THAT(printed({}), HasSubstr("seed: 5"));
  EXPECT_THAT(printed({"--config", file}), HasSubstr("max_epochs: 4"));
  EXPECT_THAT(printed({"--config", file}), HasSubstr("min_epochs: 2"));
  EXPECT_THAT(printed({"--config", file}), HasSubstr("early_stopping"));
  EXPECT_THAT(printed({"--trainer.max_epochs=9"}), HasSubstr("max_epochs: 9"));
  EXPECT_THAT(run({"--print_config"}, [](Cli& cli) { cli.defaults = "trainr: {}"; }).err,
              HasSubstr("the program's defaults:1:1: unknown key 'trainr'"));
}

TEST(CliProgram, AVariableThatIsNoOptionIsNamed) {
  const Variable wrong("LEVIN_TRAINER__MAX_EPOCH", "4");
  const ProgramOutcome outcome = run({"--print_config"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("LEVIN_TRAINER__MAX_EPOCH: unknown key 'max_epoch' in 'trainer'; did you mean "
                                     "'max_epochs'?"));
}

TEST(CliProgram, LinkedOptionsFollow) {
  const auto link = [](Cli& cli) { cli.link("data.features", "model.width"); };
  EXPECT_THAT(run({"--print_config"}, link).out, HasSubstr("width: 8  # as data.features"));
  EXPECT_THAT(run({"--print_config", "--data.features=5"}, link).out, HasSubstr("width: 5"));
  const auto computed = [](Cli& cli) {
    cli.link("data.features", "model.width",
             [](const Config& value) { return ConfigCodec<int64_t>::dump(2 * std::stoll(value.text())); });
  };
  EXPECT_THAT(run({"--print_config", "--data.features=5"}, computed).out, HasSubstr("width: 10"));

  const ProgramOutcome both = run({"--print_config", "--model.width=3"}, link);
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(both.err, HasSubstr("command line --model.width: model.width follows data.features; hint: leave it out"));
  EXPECT_EQ(run({"--print_config", "--model.width=8"}, link).status, 0) << "as the configuration of a run has it";
  EXPECT_THAT(run({"--print_config"}, [](Cli& cli) { cli.link("data.feature", "model.width"); }).err,
              HasSubstr("there is no option 'data.feature' for 'model.width' to follow"));
  EXPECT_THAT(run({"--print_config"}, [](Cli& cli) { cli.link("data.features", "model.widht"); }).err,
              HasSubstr("unknown key 'widht' in 'model'; did you mean 'width'?"));
}

TEST(CliProgram, CommandsAndHooksOfItsOwn) {
  std::vector<std::string> calls;
  const auto extend = [&](Cli& cli) {
    cli.add_command("twice", "fits two times", [&](const CliRun& run) {
      for (int i = 0; i < 2; ++i) run.trainer->fit(run.module, run.data, run.ckpt);
      calls.push_back("twice");
    });
    cli.before_command = [&](const CliRun& run) { calls.push_back("before " + run.command); };
    cli.after_command = [&](const CliRun& run) {
      calls.push_back("after " + run.command + " of " + std::to_string(run.trainer->global_step()) + " steps");
    };
  };
  const ProgramOutcome twice = run(with({"twice"}, kSmall), extend);
  EXPECT_EQ(twice.status, 0) << twice.err;
  EXPECT_THAT(calls, ElementsAre("before twice", "twice", "after twice of 5 steps"));
  calls.clear();
  EXPECT_EQ(run(with({"fit"}, kSmall), extend).status, 0);
  EXPECT_THAT(calls, ElementsAre("before fit", "after fit of 5 steps"));
  bool has_data = true;
  const ProgramOutcome without = run(with({"look"}, kSmall), [&](Cli& program) {
    program.add_command(
        "look", "", [&](const CliRun& run) { has_data = run.data != nullptr; }, /*needs_data=*/false);
  });
  EXPECT_EQ(without.status, 0) << without.err;
  EXPECT_FALSE(has_data);
  EXPECT_THAT(run({"--help"}, extend).out, HasSubstr("twice"));
  EXPECT_THAT(run({"twic"}, extend).err, HasSubstr("did you mean 'twice'?"));
  Cli cli;
  EXPECT_THROW(cli.add_command("fit", "", [](const CliRun&) {}), ConfigError);
  const ProgramOutcome thrown = run(with({"fails"}, kSmall), [](Cli& program) {
    program.add_command("fails", "", [](const CliRun&) { throw std::runtime_error("no luck"); });
  });
  EXPECT_EQ(thrown.status, 1);
  EXPECT_THAT(thrown.err, HasSubstr("error: no luck"));
}

struct ServeOptions {
  int64_t port = 8080;
  std::vector<std::string> hosts = {};
  std::optional<std::string> output = {};
  static void describe(Schema<ServeOptions>& schema) {
    schema.field("port", &ServeOptions::port, "where it listens").at_least(1).at_most(65'535);
    schema.field("hosts", &ServeOptions::hosts, "that may ask");
    schema.field("output", &ServeOptions::output, "a file for the answers");
  }
};

TEST(CliProgram, CommandsHaveOptionsOfTheirOwn) {
  ServeOptions got;
  std::string config;
  const auto extend = [&](Cli& cli) {
    cli.add_command<ServeOptions>("serve", "answers requests", [&](const CliRun& run, const ServeOptions& options) {
      got = options;
      config = run.config.to_yaml();
    });
  };
  EXPECT_EQ(run(with({"serve"}, kSmall), extend).status, 0);
  EXPECT_EQ(got.port, 8080);
  // By every source, in their order.
  const std::string file = testing::fresh_folder("cli_program") + "/config.yaml";
  std::ofstream(file) << "serve: {port: 1, hosts: [a, b]}";
  const std::string config_option = "--config=" + file;
  EXPECT_EQ(run(with({"serve", config_option}, kSmall), extend).status, 0);
  EXPECT_EQ(got.port, 1);
  EXPECT_THAT(got.hosts, ElementsAre("a", "b"));
  {
    const Variable port("LEVIN_SERVE__PORT", "2");
    EXPECT_EQ(run(with({"serve", config_option}, kSmall), extend).status, 0);
    EXPECT_EQ(got.port, 2);
    EXPECT_EQ(
        run(with({"serve", config_option, "--port=3", "--serve.hosts=[c]", "-o", "answers"}, kSmall), extend).status,
        0);
  }
  EXPECT_EQ(got.port, 3);
  EXPECT_THAT(got.hosts, ElementsAre("c"));
  EXPECT_EQ(got.output, "answers");
  EXPECT_THAT(config, HasSubstr("serve:\n  port: 3\n  hosts:")) << "with the defaults, as it is saved";

  const auto error_of = [&](const std::vector<std::string>& words) {
    const ProgramOutcome outcome = run(with(words, kSmall), extend);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error_of({"serve", "--port=0"}), HasSubstr("serve.port must be at least 1; got 0"));
  EXPECT_THAT(error_of({"serve", "--port=many"}), HasSubstr("serve.port: expected an integer"));
  EXPECT_THAT(error_of({"serve", "--serve.prot=1"}), HasSubstr("did you mean 'port'?"));
  EXPECT_THAT(error_of({"fit", "--port=1"}), HasSubstr("did you mean 'serve.port'?"));
  EXPECT_EQ(run(with({"fit", "--serve.port=1"}, kSmall), extend).status, 0);

  EXPECT_THAT(run({"--help"}, extend).out, HasSubstr("the options of the section serve"));
  for (const auto& words : {std::vector<std::string>{"serve", "--help"}, {"--help", "serve"}})
    EXPECT_THAT(run(words, extend).out,
                AllOf(HasSubstr("--serve.port\n      integer, default 8080, at least 1, at most 65535"),
                      HasSubstr("where it listens")));
  EXPECT_THAT(run({"--print_completion", "bash"}, extend).out, HasSubstr("--serve.port="));
  const auto schema = nlohmann::json::parse(run({"--print_schema"}, extend).out);
  EXPECT_EQ(schema["properties"]["serve"]["properties"]["port"]["maximum"], 65'535);

  Cli cli;
  const auto nothing = [](const CliRun&, const ServeOptions&) {};
  EXPECT_THROW(cli.add_command<ServeOptions>("fit", "", nothing), ConfigError);
  EXPECT_THROW(cli.add_command<ServeOptions>("trainer", "", nothing), ConfigError) << "a section has that name";
  EXPECT_NO_THROW(cli.add_command("trainer", "", [](const CliRun&) {}));
}

TEST(CliProgram, BuildMakesAllAndRunsNothing) {
  Cli cli;
  cli.modules.add<TinyModule>("tiny", "two layers");
  cli.data.add<LinkedSums>("sums", "points and their sums");
  auto words = with({"program", "--model.width=3"}, kSmall);
  const auto argv = argv_of(words);
  const CliRun built = cli.build(static_cast<int>(argv.size()), const_cast<char**>(argv.data()));
  EXPECT_EQ(built.module->parameters().front().size(0), 3);
  EXPECT_EQ(built.trainer->global_step(), 0);
  built.trainer->fit(built.module, built.data);
  EXPECT_EQ(built.trainer->global_step(), 5);
  auto command = with({"program", "fit"}, kSmall);
  const auto refused = argv_of(command);
  EXPECT_THROW(cli.build(static_cast<int>(refused.size()), const_cast<char**>(refused.data())), ConfigError);
}

TEST(CliProgram, TheSchemaHasEveryOptionForEditors) {
  const ProgramOutcome printed = run({"--print_schema"});
  ASSERT_EQ(printed.status, 0) << printed.err;
  const auto schema = nlohmann::json::parse(printed.out);
  const auto& trainer = schema.at("properties").at("trainer").at("properties");
  for (const auto& field : schema_of<TrainerOptions>().fields())
    EXPECT_TRUE(trainer.contains(field.name)) << field.name;
  EXPECT_EQ(trainer.at("gradient_clip_algorithm").at("enum").at(0), "norm");
  EXPECT_EQ(trainer.at("log_every_n_steps").at("type"), "integer");
  EXPECT_EQ(trainer.at("log_every_n_steps").at("minimum"), 1);
  const std::string model = schema.at("properties").at("model").dump();
  EXPECT_THAT(model, HasSubstr("tiny"));
  EXPECT_THAT(model, HasSubstr("dropout"));
  EXPECT_THAT(trainer.at("callbacks").dump(), HasSubstr("save_top_k"));
}

TEST(CliProgram, TheHelpKnowsTheDimensionsOfAMesh) {
  const auto help = [](const std::string& topic) { return run({"--help", topic}).out; };
  EXPECT_THAT(help("mesh"), AllOf(HasSubstr("\n  pipeline "), HasSubstr("\n  replicate "), HasSubstr("\n  shard ")));
  EXPECT_THAT(help("shard"),
              AllOf(HasSubstr("--trainer.strategy.shard.size\n"), HasSubstr("--trainer.strategy.shard.stage\n"),
                    HasSubstr("`trainer: {strategy: {shard: 2}}`")));
  // The strategy and the dimension of that name.
  EXPECT_THAT(help("pipeline"), AllOf(HasSubstr("--trainer.strategy.data_parallel\n"),
                                      HasSubstr("--trainer.strategy.pipeline.micro_batches\n")));
  for (const char* topic : {"strategy.pipeline.size", "trainer.strategy.pipeline.size"})
    EXPECT_THAT(help(topic),
                AllOf(StartsWith("\n  --trainer.strategy.pipeline.size\n      integer or auto, default auto"),
                      HasSubstr("what the other sizes leave")));
  EXPECT_THAT(help("strategy.replicate"), HasSubstr("--trainer.strategy.replicate.bucket_cap_mb\n"));
  EXPECT_THAT(help("auto"), HasSubstr("--trainer.strategy.memory\n"));
  EXPECT_THAT(run({"--help", "strategy.pipelin.size"}).err, HasSubstr("did you mean 'strategy.pipeline.size'?"));
}

TEST(CliProgram, ShellsCompleteCommandsOptionsAndNames) {
  const ProgramOutcome printed = run({"--print_completion", "bash"});
  ASSERT_EQ(printed.status, 0) << printed.err;
  const std::string file = testing::fresh_folder("cli") + "/completion";
  std::ofstream(file) << printed.out;
  const auto completed = [&](const std::string& line) {
    const auto shell = testing::run_program(
        {"/bin/bash", "--norc", "-c",
         "source " + file + "; COMP_LINE='" + line +
             "'; COMP_POINT=${#COMP_LINE}; compopt() { :; }; _levin_program; echo \"${COMPREPLY[@]}\""});
    return shell.out + shell.err;
  };
  EXPECT_EQ(completed("program fi"), "fit\n");
  EXPECT_EQ(completed("program fit --trainer.max_ep"), "--trainer.max_epochs=\n");
  EXPECT_EQ(completed("program fit --model.wi"), "--model.width=\n");
  EXPECT_EQ(completed("program fit --trainer.strategy=ddp_th"), "ddp_threads\n") << "bash replaces what follows '='";
  EXPECT_EQ(completed("program fit --trainer.strategy.pipeline.si"), "--trainer.strategy.pipeline.size=\n");
  EXPECT_EQ(completed("program fit --trainer.strategy.shard.st"), "--trainer.strategy.shard.stage=\n");
  EXPECT_EQ(completed("program fit --trainer.strategy.replicate.bucket_c"),
            "--trainer.strategy.replicate.bucket_cap_mb=\n");
  EXPECT_EQ(completed("program fit --trainer.strategy.pipeline.data_p"), "\n") << "the sizes say it";
  EXPECT_EQ(completed("program fit --trainer.strategy.mem"), "--trainer.strategy.memory=\n");
  EXPECT_THAT(run({"--print_completion", "zsh"}).out, StartsWith("autoload"));
  EXPECT_EQ(run({"--print_completion", "fish"}).status, 2);
}

TEST(CliProgram, ConfigurationsOfLightningAreUnderstoodOrTranslated) {
  const std::string folder = testing::fresh_folder("cli");
  const auto printed = [&](const std::string& yaml) {
    std::ofstream(folder + "/config.yaml") << yaml;
    const ProgramOutcome outcome = run({"--print_config", "--config", folder + "/config.yaml"});
    return outcome.out + outcome.err;
  };
  const std::string understood = printed(R"(
seed_everything: 11
ckpt_path: last
model: {class_path: my_project.Tiny, init_args: {width: 6}}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.01}}
trainer:
  max_epochs: 3
  logger: {class_path: lightning.pytorch.loggers.TensorBoardLogger}
  callbacks:
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val_loss, patience: 4}
    - class_path: lightning.pytorch.callbacks.LearningRateMonitor
)");
  for (const char* expected : {"seed: 11", "ckpt: last", "width: 6", "early_stopping", "patience: 4", "tensorboard",
                               "learning_rate_monitor", "adamw"})
    EXPECT_THAT(understood, HasSubstr(expected));
  EXPECT_THAT(printed("model: {class_path: my_project.Other}"),
              HasSubstr("model.class_path names a class of Python; got 'my_project.Other'; valid: name: one of tiny"));
  EXPECT_THAT(printed("model: {class_path: Tiny, width: 3}"),
              HasSubstr("model.width stands beside class_path; valid: below init_args"));
  EXPECT_THAT(printed("seed: 3\nseed_everything: 4"),
              HasSubstr("'seed_everything' is 'seed' here, which is given too"));
}

}  // namespace
}  // namespace levin
