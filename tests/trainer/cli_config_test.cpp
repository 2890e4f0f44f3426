#include <levin/core/cli/cli_config.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/sampling.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/schedulers.h>
#include <levin/core/options/registries.h>
#include <levin/core/precision/precision.h>
#include <levin/core/sweep/settings.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

struct MlpOptions {
  int64_t hidden = 128;
  double lr = 1e-3;
  static void describe(Schema<MlpOptions>& schema) {
    schema.field("hidden", &MlpOptions::hidden, "width").at_least(1);
    schema.field("lr", &MlpOptions::lr, "learning rate").above(0);
  }
};

class Mlp : public Module {
 public:
  using Options = MlpOptions;
  explicit Mlp(const Options& /*options*/) {}
};

struct CnnOptions {
  int64_t channels = 16;
  static void describe(Schema<CnnOptions>& schema) { schema.field("channels", &CnnOptions::channels, "channels"); }
};

class Cnn : public Module {
 public:
  using Options = CnnOptions;
  explicit Cnn(const Options& /*options*/) {}
};

struct FreeOptions {
  Config extras;
  static void describe(Schema<FreeOptions>& schema) {
    schema.field("extras", &FreeOptions::extras, "anything").require("without 'bad'", [](const Config& extras) {
      return extras.find("bad") == nullptr;
    });
  }
};

struct TextsOptions {
  std::string text = "x";
  std::optional<std::string> maybe = "y";
  std::filesystem::path path = "z";
  std::vector<std::string> list;
  std::map<std::string, std::string> map;
  int64_t number = 1;
  static void describe(Schema<TextsOptions>& schema) {
    schema.field("text", &TextsOptions::text, "text");
    schema.field("maybe", &TextsOptions::maybe, "text or nothing");
    schema.field("path", &TextsOptions::path, "path");
    schema.field("list", &TextsOptions::list, "texts");
    schema.field("map", &TextsOptions::map, "texts by name");
    schema.field("number", &TextsOptions::number, "number");
  }
};

class Texts : public Module {
 public:
  using Options = TextsOptions;
  explicit Texts(const Options& /*options*/) {}
};

class Free : public Module {
 public:
  using Options = FreeOptions;
  explicit Free(const Options& /*options*/) {}
};

struct PointsOptions {
  std::string root = "points";
  std::optional<Spec<data::Sampling>> sampler;
  static void describe(Schema<PointsOptions>& schema) {
    schema.field("root", &PointsOptions::root, "folder");
    schema.field("sampler", &PointsOptions::sampler, "order");
  }
};

class Points : public DataModule {
 public:
  using Options = PointsOptions;
  explicit Points(const Options& /*options*/) {}
};

class CliConfigTest : public ::testing::Test {
 protected:
  CliConfigTest() {
    modules.add<Mlp>("mlp");
    modules.add<Cnn>("cnn");
    data.add<Points>("points");
  }

  ~CliConfigTest() override {
    for (const auto& file : files_) std::filesystem::remove(file);
  }

  std::string file(const std::string& yaml) {
    const std::string path = ::testing::TempDir() + "/cli_config_" + std::to_string(getpid()) + "_" +
                             std::to_string(files_.size()) + ".yaml";
    std::ofstream(path) << yaml;
    files_.push_back(path);
    return path;
  }

  Config resolve(const std::vector<std::string>& files, std::vector<const char*> words = {}) {
    words.insert(words.begin(), {"program", "fit"});
    const auto arguments = parse_arguments(static_cast<int>(words.size()), words.data(), {"fit"});
    return resolve_config(merge_sources(files, arguments.settings, names()), names());
  }

  std::string error_of(const std::vector<std::string>& files, const std::vector<const char*>& words = {}) {
    try {
      resolve(files, words);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  ConfigNames names() {
    auto& all = registries();
    return {modules,       data,           all.callbacks,
            all.loggers,   all.strategies, all.precisions,
            all.profilers, all.optimizers, optim::scheduler_registry()};
  }

  Registry<Module> modules{"model"};
  Registry<DataModule> data{"data module"};

 private:
  std::vector<std::string> files_;
};

TEST_F(CliConfigTest, OptimizerAndSchedulerStandBesideTheModel) {
  const std::string path = file(
      "optimizer: {adamw: {lr: 0.01, groups: [{pattern: '*.bias', weight_decay: 0}]}}\n"
      "scheduler: {name: cosine, warmup_steps: 100}\n");
  const Config trainer = *resolve({path}, {"--optimizer.lr", "0.02", "--scheduler.eta_min=1e-5"}).find("trainer");
  const Config& optimizer = *trainer.find("optimizer");
  EXPECT_EQ(optimizer.find("name")->text(), "adamw");
  EXPECT_EQ(optimizer.find("lr")->text(), "0.02");
  EXPECT_EQ(optimizer.find("lr")->origin().source, "command line --optimizer.lr");
  EXPECT_EQ(optimizer.find("weight_decay")->text(), "0.01");
  EXPECT_EQ(optimizer.find("groups")->items().size(), 1u);
  const Config& scheduler = *trainer.find("scheduler");
  EXPECT_EQ(scheduler.find("eta_min")->text(), "1e-5");
  EXPECT_EQ(scheduler.find("interval")->text(), "step");
  EXPECT_EQ(scheduler.find("warmup_steps")->text(), "100");

  // Options of another optimizer do not stay.
  const Config sgd = *resolve({path}, {"--optimizer", "sgd"}).find("trainer")->find("optimizer");
  EXPECT_EQ(sgd.find("groups")->items().size(), 0u);
  EXPECT_EQ(resolve({}).find("trainer")->find("optimizer")->to_flow(), "null");

  EXPECT_THAT(error_of({file("optimizer: sgd\ntrainer: {optimizer: adamw}\n")}),
              ::testing::HasSubstr("'optimizer' and 'trainer.optimizer' are the same option"));
  EXPECT_THAT(error_of({file("optimizer: adamx\n")}), ::testing::HasSubstr(".yaml:1:12: unknown optimizer 'adamx'"));
  EXPECT_THAT(error_of({file("scheduler: {name: cosine, tmax: 3}\n")}),
              ::testing::HasSubstr(".yaml:1:27: unknown key 'tmax'"));
}

TEST_F(CliConfigTest, OptionsOfWeightsAreAddedToTheirPath) {
  const std::string path = file("trainer: {init_from: first.pth}\n");
  const auto resolved = [&](std::vector<const char*> words) {
    return *resolve({path}, std::move(words)).find("trainer")->find("init_from");
  };
  const Config added = resolved({"--trainer.init_from.strict=false"});
  EXPECT_EQ(added.find("path")->text(), "first.pth");
  EXPECT_EQ(added.find("strict")->text(), "false");
  const Config both = resolved({"--trainer.init_from=second.pth", "--trainer.init_from.strict=false"});
  EXPECT_EQ(both.find("path")->text(), "second.pth");
  EXPECT_EQ(both.find("strict")->text(), "false");
  EXPECT_EQ(resolved({"--trainer.init_from=null"}).to_flow(), "null");
}

TEST_F(CliConfigTest, LoggerWhoseServiceHasEnded) {
  for (const char* logger : {"neptune", "[csv, neptune]", "{neptune: {project: names}}"}) {
    const std::string error = error_of({file(std::string("trainer: {logger: ") + logger + "}\n")});
    EXPECT_NE(error.find(".yaml:1:"), std::string::npos) << error;
    EXPECT_NE(error.find("'neptune': the service ended on 5 March 2026; hint: take wandb, or mlflow"),
              std::string::npos)
        << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_NE(error_of({}, {"--trainer.logger=neptune"}).find("5 March 2026"), std::string::npos);
}

TEST_F(CliConfigTest, Profilers) {
  const auto profiler = [&](const std::vector<std::string>& files, const std::vector<const char*>& words = {}) {
    return resolve(files, words).find("trainer")->find("profiler")->to_flow();
  };
  EXPECT_EQ(profiler({}), "null");
  EXPECT_EQ(profiler({file("trainer: {profiler: simple}\n")}), "{name: simple, units: true, least_percent: 0.1}");
  EXPECT_EQ(profiler({file("trainer: {profiler: simple}\n")}, {"--trainer.profiler=null"}), "null");
  // Later options join those of the same profiler; another profiler has none of them.
  const std::string traces = file("trainer: {profiler: {pytorch: {schedule: {wait: 7, warmup: 2}}}}\n");
  const std::string merged = profiler({traces}, {"--trainer.profiler.schedule.active=5"});
  EXPECT_NE(merged.find("wait: 7, warmup: 2, active: 5"), std::string::npos) << merged;
  EXPECT_EQ(profiler({traces}, {"--trainer.profiler=nvtx"}), "{name: nvtx, units: true, operators: false}");
  EXPECT_NE(error_of({file("trainer: {profiler: simpel}\n")}).find("did you mean 'simple'"), std::string::npos);
  EXPECT_NE(error_of({traces}, {"--trainer.profiler.schedule.active=0"}).find("at least 1"), std::string::npos);
}

TEST_F(CliConfigTest, DefaultsAreWhole) {
  const Config config = resolve({});
  EXPECT_TRUE(config.find("seed")->is_null());
  EXPECT_TRUE(config.find("ckpt")->is_null());
  EXPECT_EQ(config.find("model")->to_flow(), "{name: mlp, hidden: 128, lr: 0.001}");
  EXPECT_EQ(config.find("data")->to_flow(), "{name: points, root: points, sampler: null}");
  EXPECT_EQ(config.find("trainer")->find("strategy")->to_flow(), "auto");
  EXPECT_EQ(config.find("trainer")->find("precision")->to_flow(), "32-true");
  EXPECT_EQ(config.find("trainer")->find("log_every_n_steps")->to_flow(), "50");
  EXPECT_EQ(config.find("trainer")->find("log_every_n_steps")->origin().describe(), "default");
}

TEST_F(CliConfigTest, OtherNamesOfStrategies) {
  const auto strategy = [&](const std::string& yaml, std::vector<const char*> words = {}) {
    return *resolve({file("trainer: {strategy: " + yaml + "}\n")}, std::move(words)).find("trainer")->find("strategy");
  };
  EXPECT_EQ(strategy("fsdp").find("name")->text(), "sharded");
  EXPECT_EQ(strategy("{name: fsdp, prefetch: 2}", {"--trainer.strategy.stage=1"}).find("stage")->text(), "1");
  const Config older = strategy("{name: rpc_sequential, microbatches: 4}", {"--trainer.strategy.checkpoint=never"});
  EXPECT_EQ(older.find("name")->text(), "pipeline");
  EXPECT_EQ(older.find("micro_batches")->text(), "4");
  EXPECT_EQ(older.find("checkpoint")->text(), "never");
}

TEST_F(CliConfigTest, AStrategyMayBeTheSizesOfAMesh) {
  const auto strategy = [&](const std::string& yaml, std::vector<const char*> words = {}) {
    return resolve({file("trainer: {strategy: " + yaml + "}\n")}, std::move(words))
        .find("trainer")
        ->find("strategy")
        ->to_flow();
  };
  EXPECT_EQ(strategy("{pipeline: 2, shard: auto}"), "{pipeline: 2, shard: auto}");
  EXPECT_EQ(
      strategy("{pipeline: 2, shard: auto}", {"--trainer.strategy.replicate=2", "--trainer.strategy.backend=gloo"}),
      "{pipeline: 2, shard: auto, replicate: 2, backend: gloo}");
  // Options and sizes of one dimension are laid over those of another source, in any order.
  EXPECT_EQ(
      strategy("{pipeline: {size: 2, schedule: gpipe}, shard: 2}", {"--trainer.strategy.pipeline.micro_batches=4"}),
      "{pipeline: {size: 2, schedule: gpipe, micro_batches: 4}, shard: 2}");
  EXPECT_EQ(strategy("{pipeline: {size: 2, schedule: gpipe}, shard: 2}", {"--trainer.strategy.pipeline=4"}),
            "{pipeline: {size: 4, schedule: gpipe}, shard: 2}");
  EXPECT_EQ(strategy("{pipeline: 2, replicate: auto}", {"--trainer.strategy.pipeline.micro_batches=4"}),
            "{pipeline: {size: 2, micro_batches: 4}, replicate: auto}");
  EXPECT_EQ(strategy("{pipeline: {micro_batches: 4}}", {"--trainer.strategy.replicate=2"}),
            "{pipeline: {micro_batches: 4}, replicate: 2}");
  EXPECT_EQ(strategy("{start_method: thread}", {"--trainer.strategy={pipeline: 2, shard: 2}"}),
            "{start_method: thread, pipeline: 2, shard: 2}");
  EXPECT_EQ(strategy("auto", {"--trainer.strategy={start_method: thread, pipeline: {micro_batches: 4}}",
                              "--trainer.strategy.pipeline.size=2", "--trainer.strategy.replicate=2"}),
            "{start_method: thread, pipeline: {micro_batches: 4, size: 2}, replicate: 2}");
  // A mesh and a name take each other's place.
  EXPECT_EQ(strategy("{name: sharded, stage: 2}", {"--trainer.strategy={replicate: 2, shard: 2}"}),
            "{replicate: 2, shard: 2}");
  EXPECT_EQ(strategy("sharded", {"--trainer.strategy.shard=2"}), "{shard: 2}");
  EXPECT_THAT(strategy("{replicate: 2, shard: 2}", {"--trainer.strategy=single_device"}),
              ::testing::StartsWith("{name: single_device"));
  EXPECT_THAT(strategy("{pipeline: {micro_batches: 2}}", {"--trainer.strategy.schedule=gpipe"}),
              ::testing::HasSubstr("{name: pipeline"));
  EXPECT_THAT(strategy("{pipeline: {micro_batches: 2}}", {"--trainer.strategy.pipeline.schedule=gpipe"}),
              ::testing::AllOf(::testing::HasSubstr("micro_batches: 2"), ::testing::HasSubstr("schedule: gpipe")));
}

TEST_F(CliConfigTest, MisspeltDimensionsHaveTheNearestName) {
  const auto message = [&](const std::string& given) {
    return error_of({file("trainer:\n  strategy: " + given + "\n")}, {});
  };
  EXPECT_THAT(message("{pipelin: 2}"),
              ::testing::AllOf(::testing::HasSubstr(":2:14: trainer.strategy.pipelin is no dimension of a mesh"),
                               ::testing::HasSubstr(
                                   "did you mean 'pipeline'?; valid: pipeline, replicate, shard, context, tensor")));
  EXPECT_THAT(message("{replicat: 2, shrad: 2}"), ::testing::HasSubstr("did you mean 'replicate'?"));
  EXPECT_THAT(message("{shards: {size: 2, stage: 1}}"), ::testing::HasSubstr("did you mean 'shard'?"));
  EXPECT_THAT(message("{pipeline: 2, shrad: 2}"), ::testing::HasSubstr("did you mean 'shard'?"));
  EXPECT_THAT(error_of({}, {"--trainer.strategy.pipelin.size=2"}), ::testing::HasSubstr("did you mean 'pipeline'?"));
  EXPECT_THAT(message("{bucket_cap_mb: 2}"), ::testing::HasSubstr("expected the name of a strategy"));
}

TEST_F(CliConfigTest, LaterSourcesWin) {
  const auto first = file("seed: 1\nmodel: {hidden: 8, lr: 0.1}\ntrainer: {max_epochs: 2, max_steps: 5}\n");
  const auto second = file("model:\n  hidden: 16\ntrainer:\n  max_epochs: 3\n");
  const Config config = resolve({first, second}, {"--trainer.max_steps=7", "--trainer.max_steps=9"});
  EXPECT_EQ(config.find("seed")->text(), "1");
  EXPECT_EQ(config.find("model")->to_flow(), "{name: mlp, hidden: 16, lr: 0.1}");
  const Config& trainer = *config.find("trainer");
  EXPECT_EQ(trainer.find("max_epochs")->text(), "3");
  EXPECT_EQ(trainer.find("max_epochs")->origin().describe(), second + ":4:15");
  EXPECT_EQ(trainer.find("max_steps")->text(), "9");
  EXPECT_EQ(trainer.find("max_steps")->origin().describe(), "command line --trainer.max_steps");
}

TEST_F(CliConfigTest, OptionsOfAnyFormMergeKeyByKey) {
  modules.add<Free>("free");
  const auto first = file("model:\n  name: free\n  extras:\n    a: 1\n    deep: {x: [1, 2], y: 1}\n");
  const auto second = file("model: {extras: {deep: {x: [3]}}}\n");
  const auto extras_of = [&](const std::vector<std::string>& files, const std::vector<const char*>& words) {
    return *resolve(files, words).find("model")->find("extras");
  };
  EXPECT_EQ(extras_of({first, second}, {"--model.extras.b=2", "--model.extras.deep={y: 5}"}).to_flow(),
            "{a: 1, deep: {x: [3], y: 5}, b: 2}");
  const auto none = file("model: {extras: null}\n");
  EXPECT_EQ(extras_of({first, none, second}, {}).to_flow(), "{deep: {x: [3]}}");
}

TextsOptions texts_of(const Config& config) {
  Config model = *config.find("model");
  model.erase("name");
  return parse_options<TextsOptions>(model, "model");
}

// What the program reads, what it writes to config.yaml, and what it reads from there, are all the text.
TEST_F(CliConfigTest, AnOptionThatIsTextTakesTheTextAsItIs) {
  modules.add<Texts>("texts");
  for (const std::string text : {"{epoch}-{val_loss:.2f}",
                                 "{epoch}",
                                 "{a: 1, b: [2]}",
                                 "[x]",
                                 "[draft",
                                 "- x",
                                 "a: b",
                                 "a: b\nc: d",
                                 "runs #2",
                                 "--- x",
                                 "%x",
                                 "# x",
                                 "two\nlines\n",
                                 " padded ",
                                 "\"open",
                                 "'tis",
                                 "'a' and 'b'",
                                 "3",
                                 "true",
                                 "&a b",
                                 "!t b",
                                 "*.txt"}) {
    SCOPED_TRACE(text);
    std::vector<std::string> words = {"--model=texts"};
    for (const char* option : {"model.text", "model.maybe", "model.path", "model.map.key", "ckpt",
                               "trainer.default_root_dir", "trainer.callbacks.model_checkpoint.dirpath"})
      words.push_back(std::string("--") + option + "=" + text);
    std::vector<const char*> given;
    for (const std::string& word : words) given.push_back(word.c_str());
    const Config config = resolve({}, given);
    for (const Config& read :
         {config, resolve({file(config.to_yaml())}), resolve({file(config.to_yaml(/*with_origins=*/true))})}) {
      const TextsOptions options = texts_of(read);
      EXPECT_EQ(options.text, text);
      EXPECT_EQ(options.maybe, text);
      EXPECT_EQ(options.path, text);
      EXPECT_EQ(options.map.at("key"), text);
      EXPECT_EQ(read.find("ckpt")->text(), text);
      const Config& trainer = *read.find("trainer");
      EXPECT_EQ(trainer.find("default_root_dir")->text(), text);
      EXPECT_EQ(trainer.find("callbacks")->items()[0].find("model_checkpoint")->find("dirpath")->text(), text);
    }
    setenv("LEVIN_MODEL__TEXT", text.c_str(), 1);
    const auto variables = environment_settings();
    unsetenv("LEVIN_MODEL__TEXT");
    EXPECT_EQ(texts_of(resolve_config(merge_sources({file("model: texts")}, variables, names()), names())).text, text);
  }
}

/// Each setting is laid over what those before it have made of the files.
TEST_F(CliConfigTest, WhatASettingReplacedDoesNotComeBack) {
  const auto trainer = [&](const std::string& text, const std::vector<const char*>& words) {
    return *resolve({file("trainer: " + text + "\n")}, words).find("trainer");
  };
  EXPECT_EQ(trainer("{accumulate_grad_batches: {0: 2, 1: 3}}",
                    {"--trainer.accumulate_grad_batches=4", "--trainer.accumulate_grad_batches={2: 8}"})
                .find("accumulate_grad_batches")
                ->to_flow(),
            "{0: 1, 2: 8}");
  EXPECT_EQ(trainer("{scheduler: {name: cosine, warmup_steps: 100}}",
                    {"--trainer.scheduler=null", "--trainer.scheduler.name=cosine"})
                .find_path("scheduler.warmup_steps")
                ->text(),
            "0");
  EXPECT_EQ(trainer("{callbacks: [timer]}", {"--trainer.callbacks=[]", "--trainer.callbacks.timer.interval=step"})
                .find("callbacks")
                ->items()
                .size(),
            1u);
  // A name takes options along that stand before it.
  const Config strategy = trainer("{strategy: {name: ddp, timeout: 5}}",
                                  {"--trainer.strategy.data_parallel=2", "--trainer.strategy=pipeline"});
  EXPECT_EQ(strategy.find_path("strategy.data_parallel")->text(), "2");
  EXPECT_EQ(strategy.find_path("strategy.timeout")->text(), "1800");
}

TEST_F(CliConfigTest, VariablesOfTheTopLevelAreOptionsToo) {
  modules.add<Texts>("texts");
  setenv("LEVIN_SEED", "7", 1);
  setenv("LEVIN_MODEL", "texts", 1);
  setenv("LEVIN_CKPT", "last", 1);
  setenv("LEVIN_TRAINER", "{max_epochs: 3}", 1);
  setenv("LEVIN_JOB_SECRET", "no option", 1);
  const auto variables = environment_settings();
  for (const char* name : {"LEVIN_SEED", "LEVIN_MODEL", "LEVIN_CKPT", "LEVIN_TRAINER", "LEVIN_JOB_SECRET"})
    unsetenv(name);
  const Config config =
      resolve_config(merge_sources({file("seed: 1\ntrainer: {min_epochs: 2}\n")}, variables, names()), names());
  EXPECT_EQ(config.find("seed")->text(), "7");
  EXPECT_EQ(config.find_path("model.name")->text(), "texts");
  EXPECT_EQ(config.find("ckpt")->text(), "last");
  EXPECT_EQ(config.find_path("trainer.max_epochs")->text(), "3");
  EXPECT_EQ(config.find_path("trainer.min_epochs")->text(), "2");
}

/// No value, an empty one, is the empty text; `null` is a word.
TEST_F(CliConfigTest, AnEmptyValueIsNoNull) {
  modules.add<Texts>("texts");
  for (const char* option : {"--trainer.max_epochs", "--trainer.callbacks", "--trainer.gradient_clip_val",
                             "--trainer.devices", "--trainer.max_time", "--seed", "--trainer.logger"}) {
    SCOPED_TRACE(option);
    EXPECT_NE(error_of({}, {"--model=texts", option, ""}), "no error");
    std::string name = std::string(option).substr(2);
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) name.replace(dot, 1, "__");
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    setenv(("LEVIN_" + name).c_str(), "", 1);
    const auto variables = environment_settings();
    unsetenv(("LEVIN_" + name).c_str());
    EXPECT_THROW(resolve_config(merge_sources({file("model: texts")}, variables, names()), names()), ConfigError);
  }
  const Config texts = resolve({}, {"--model=texts", "--model.text", "", "--model.maybe", ""});
  EXPECT_EQ(texts_of(texts).text, "");
  EXPECT_EQ(texts_of(texts).maybe, "");
}

TEST_F(CliConfigTest, NullAndQuotationsOfTexts) {
  modules.add<Texts>("texts");
  const auto texts = [&](const char* word) { return texts_of(resolve({}, {"--model=texts", word})); };
  EXPECT_EQ(texts("--model.maybe=null").maybe, std::nullopt);
  EXPECT_EQ(texts("--model.maybe=\"null\"").maybe, "null");
  EXPECT_EQ(texts("--model.text=\"\"").text, "");
  EXPECT_EQ(texts("--model.text='{a}'").text, "{a}");
  EXPECT_EQ(texts("--model.list=[a, 'b #2']").list, (std::vector<std::string>{"a", "b #2"}));
  EXPECT_NE(error_of({}, {"--model=texts", "--model.text=null"}).find("expected a string; got null"),
            std::string::npos);
  // What was changed is no text any more.
  EXPECT_NE(error_of({}, {"--model=texts", "--model.text={a: 1}", "--model.text.b=2"}).find("expected a string"),
            std::string::npos);
}

TEST_F(CliConfigTest, OptionsThatAreNoTextRefuseTextThatLooksLikeMore) {
  modules.add<Texts>("texts");
  modules.add<Free>("free");
  const auto refused = [&](const char* model, const char* word, const std::string& why) {
    const std::string error = error_of({}, {model, word});
    EXPECT_NE(error.find(why), std::string::npos) << error;
    EXPECT_NE(error.find("command line --"), std::string::npos) << error;
  };
  refused("--model=texts", "--model.number=3 # three", "expected an integer; got '3 # three'");
  refused("--model=texts", "--model.number=[3", "not YAML");
  refused("--model=texts", "--model.list=[a, b", "not YAML");
  refused("--model=texts", "--model.list=a", "expected list of string; got 'a'");
  refused("--model=texts", "--model.map={a: 1", "not YAML");
  refused("--model=free", "--model.extras={a: 1", "not YAML");
  refused("--model=free", "--model.extras.deep=[a", "not YAML");
  refused("--model=free", "--trainer.callbacks=[a", "not YAML");
  refused("--model=free", "--trainer.logger=[csv", "not YAML");
  refused("--model=free", "--trainer.strategy={name: ddp", "not YAML");
  refused("--model=free", "--sweep.grid={model.lr: [1, 2}", "not YAML");
  EXPECT_EQ(resolve({}, {"--model=free", "--model.extras.name=runs #2"}).find("model")->find("extras")->to_flow(),
            "{name: \"runs #2\"}");
}

TEST_F(CliConfigTest, WhatIsWrongInAnOptionOfAnyFormNamesItsSource) {
  modules.add<Free>("free");
  const auto base = file("model:\n  name: free\n  extras: {a: 1}\n");
  const Config extras = *resolve({base}, {"--model.extras.a=2", "--model.extras.b=3"}).find("model")->find("extras");
  for (const auto& entry : extras.entries()) {
    EXPECT_EQ(entry.value.origin().describe(), "command line --model.extras." + entry.key);
    EXPECT_EQ(entry.origin.describe(), "command line --model.extras." + entry.key);
  }
  EXPECT_NE(error_of({base}, {"--model.extras.bad=2"})
                .find(base + ":3:11 and command line --model.extras.bad: model.extras must be without 'bad'"),
            std::string::npos)
      << error_of({base}, {"--model.extras.bad=2"});
  EXPECT_NE(error_of({}, {"--model=free", "--model.extras.bad=2"})
                .find("[config] command line --model.extras.bad: model.extras must be"),
            std::string::npos);
}

TEST_F(CliConfigTest, HostileSizesAreRefused) {
  std::string path = "--trainer";
  for (int i = 0; i < 30'000; ++i) path += ".a";
  path += "=1";
  const std::string deep = error_of({}, {path.c_str()});
  EXPECT_NE(deep.find("command line --trainer.a.a.a."), std::string::npos);
  EXPECT_NE(deep.find("a path of 30001 keys; valid: at most 100"), std::string::npos);
  EXPECT_LT(deep.size(), 400U);
  EXPECT_NE(error_of({}, {"--trainer.devices=1000000000000"})
                .find("trainer.devices must be a count of at most 1024, or indices from 0 to 1023; got 1000000000000"),
            std::string::npos)
      << error_of({}, {"--trainer.devices=1000000000000"});
  EXPECT_NE(error_of({}, {"--trainer.num_nodes=1000000000000"}).find("trainer.num_nodes must be at most 100000"),
            std::string::npos);
}

TEST_F(CliConfigTest, SectionsInEveryForm) {
  for (const char* yaml : {"model: cnn", "model: {name: cnn}", "model: {cnn: {channels: 16}}", "model:\n  cnn:\n"})
    EXPECT_EQ(resolve({file(yaml)}).find("model")->to_flow(), "{name: cnn, channels: 16}") << yaml;
  EXPECT_EQ(resolve({file("model:\ndata:\ntrainer:\n")}).find("model")->find("name")->text(), "mlp");
  EXPECT_EQ(resolve({file("")}).find("data")->find("name")->text(), "points");
}

TEST_F(CliConfigTest, AnotherNameDropsTheOptionsOfTheFormer) {
  const auto base = file("model: {name: mlp, hidden: 8}\n");
  EXPECT_EQ(resolve({base}, {"--model=cnn"}).find("model")->to_flow(), "{name: cnn, channels: 16}");
  EXPECT_EQ(resolve({base}, {"--model.channels=4", "--model.name=cnn"}).find("model")->to_flow(),
            "{name: cnn, channels: 4}");
  EXPECT_EQ(resolve({base}, {"--model=mlp"}).find("model")->find("hidden")->text(), "8");
}

TEST_F(CliConfigTest, CommandLineChangesMembersOfAList) {
  const auto base =
      file("trainer:\n  callbacks:\n    - early_stopping: {monitor: val_loss, patience: 2}\n    - timer\n");
  const Config config = resolve({base}, {"--trainer.callbacks.early_stopping.patience=7",
                                         "--trainer.callbacks.learning_rate_monitor.logging_interval=step"});
  const auto& callbacks = config.find("trainer")->find("callbacks")->items();
  ASSERT_EQ(callbacks.size(), 3U);
  EXPECT_EQ(callbacks[0].find("early_stopping")->find("patience")->text(), "7");
  EXPECT_EQ(callbacks[0].find("early_stopping")->find("monitor")->text(), "val_loss");
  EXPECT_NE(callbacks[1].find("timer"), nullptr);
  EXPECT_EQ(callbacks[2].find("learning_rate_monitor")->find("logging_interval")->text(), "step");
}

TEST_F(CliConfigTest, CommandLineReplacesAList) {
  const auto base = file("trainer: {callbacks: [timer]}\n");
  const Config config = resolve({base}, {"--trainer.callbacks=[{early_stopping: {monitor: val_loss}}]"});
  const auto& callbacks = config.find("trainer")->find("callbacks")->items();
  ASSERT_EQ(callbacks.size(), 1U);
  EXPECT_EQ(callbacks[0].find("early_stopping")->find("monitor")->text(), "val_loss");
}

TEST_F(CliConfigTest, LoggersInEveryForm) {
  const auto logger_of = [&](const std::string& yaml, const std::vector<const char*>& words = {}) {
    return resolve({file("trainer: {logger: " + yaml + "}\n")}, words).find("trainer")->find("logger")->to_flow();
  };
  EXPECT_EQ(logger_of("true"), "true");
  EXPECT_EQ(logger_of("false"), "false");
  const auto csv = [](const std::string& name, int rows) {
    return "{csv: {save_dir: \"\", name: " + name +
           ", version: \"\", prefix: \"\", flush_every: " + std::to_string(rows) + "}}";
  };
  const std::string none = "\"\"";
  EXPECT_EQ(logger_of("csv"), "[" + csv(none, 100) + "]");
  EXPECT_EQ(logger_of("{csv: {flush_every: 3}}"), "[" + csv(none, 3) + "]");
  EXPECT_EQ(logger_of("[csv, csv: {flush_every: 2, name: a}]"), "[" + csv(none, 100) + ", " + csv("a", 2) + "]");
  EXPECT_EQ(logger_of("csv", {"--trainer.logger.csv.flush_every=4"}), "[" + csv(none, 4) + "]");
  EXPECT_EQ(logger_of("true", {"--trainer.logger.csv.flush_every=4"}).find("[" + csv(none, 4) + ", {tensorboard:"), 0U);
}

TEST_F(CliConfigTest, StrategyTakesOptions) {
  EXPECT_EQ(resolve({}, {"--trainer.strategy=single_device"}).find("trainer")->find("strategy")->to_flow(),
            "{name: single_device, hang_timeout: 600}");
  EXPECT_NE(
      error_of({}, {"--trainer.strategy.bucket_cap_mb=5"}).find("trainer.strategy: expected the name of a strategy"),
      std::string::npos);
  EXPECT_NE(error_of({file("trainer: {strategy: auto}\n")}, {"--trainer.strategy.bucket_cap_mb=5"})
                .find("'auto' has no options"),
            std::string::npos);
  EXPECT_NE(
      error_of({file("trainer: {strategy: single_device}\n")}, {"--trainer.strategy.bucket_cap_mb=5"})
          .find("command line --trainer.strategy.bucket_cap_mb: unknown key 'bucket_cap_mb' in 'trainer.strategy'"),
      std::string::npos);
}

TEST_F(CliConfigTest, ResolvedConfigurationReadsBackTheSame) {
  const auto base = file(
      "seed: 42\nmodel: {name: cnn, channels: 4}\ntrainer:\n  max_epochs: 2\n  limit_val_batches: 1.0\n  devices: "
      "\"1\"\n"
      "  callbacks: [timer, early_stopping: {monitor: val_loss}]\n  logger: [csv]\n");
  const Config config = resolve({base});
  const Config again = resolve({file(config.to_yaml(true))});
  EXPECT_TRUE(config == again) << config.to_yaml() << again.to_yaml();
}

TEST_F(CliConfigTest, UnknownKeysHavePlaceAndNearestName) {
  const auto top = file("seed: 1\ntrianer: {max_epochs: 3}\n");
  EXPECT_NE(error_of({top}).find(top + ":2:1: unknown key 'trianer'; did you mean 'trainer'?"), std::string::npos);
  const auto option = file("trainer:\n  max_epoch: 3\n");
  EXPECT_NE(error_of({option}).find(option + ":2:3: unknown key 'max_epoch' in 'trainer'; did you mean 'max_epochs'?"),
            std::string::npos);
  const auto model = file("model: {name: mlp, hiden: 3}\n");
  EXPECT_NE(error_of({model}).find(model + ":1:20: unknown key 'hiden' in 'model'; did you mean 'hidden'?"),
            std::string::npos);
  const auto name = file("model: {name: mpl}\n");
  EXPECT_NE(error_of({name}).find(name + ":1:15: unknown model 'mpl'; did you mean 'mlp'?"), std::string::npos);
  const auto callback = file("trainer: {callbacks: [early_stoping: {monitor: x}]}\n");
  EXPECT_NE(error_of({callback}).find("unknown callback 'early_stoping'; did you mean 'early_stopping'?"),
            std::string::npos);
  const auto nested = file("trainer: {callbacks: [early_stopping: {monitro: x}]}\n");
  EXPECT_NE(
      error_of({nested}).find("unknown key 'monitro' in 'trainer.callbacks.early_stopping'; did you mean 'monitor'?"),
      std::string::npos);
  EXPECT_NE(error_of({}, {"--trianer.max_epochs=3"})
                .find("command line --trianer.max_epochs: unknown key 'trianer'; did you mean 'trainer'?"),
            std::string::npos);
}

TEST_F(CliConfigTest, OptionWithoutItsSectionGetsTheSection) {
  EXPECT_NE(error_of({}, {"--max_epochs=3"}).find("unknown key 'max_epochs'; did you mean 'trainer.max_epochs'?"),
            std::string::npos);
  EXPECT_NE(error_of({}, {"--acumulate_grad_batches=3"}).find("did you mean 'trainer.accumulate_grad_batches'?"),
            std::string::npos);
  EXPECT_NE(error_of({file("hidden: 3\n")}).find("did you mean 'model.hidden'?"), std::string::npos);
  EXPECT_NE(error_of({file("root: x\n")}).find("did you mean 'data.root'?"), std::string::npos);
}

TEST_F(CliConfigTest, WrongValuesAreRefused) {
  EXPECT_NE(error_of({file("seed: x\n")}).find(":1:7: seed: expected an integer; got 'x'"), std::string::npos);
  EXPECT_NE(error_of({}, {"--seed=-1"}).find("seed must be at least 0, or null for a random one; got -1"),
            std::string::npos);
  EXPECT_NE(error_of({file("model: {hidden: 0}\n")}).find("model.hidden must be at least 1; got 0"), std::string::npos);
  EXPECT_NE(error_of({file("model: [mlp]\n")}).find("model: expected the name of a model"), std::string::npos);
  EXPECT_NE(error_of({file("trainer: [a]\n")}).find("trainer: expected a mapping of options; got a list"),
            std::string::npos);
  EXPECT_NE(error_of({file("- a\n")}).find("expected a mapping such as"), std::string::npos);
  EXPECT_NE(error_of({file("trainer: {callbacks: [3: 4]}\n")}).find("unknown callback '3'"), std::string::npos);
  EXPECT_NE(
      error_of({file("trainer: {callbacks: {timer: 3}}\n")}).find("timer: expected a mapping of options; got '3'"),
      std::string::npos);
  EXPECT_NE(error_of({file("ckpt: [a]\n")}).find("ckpt: expected a string; got a list"), std::string::npos);
  EXPECT_NE(error_of({"not/there.yaml"}).find("cannot read the configuration file 'not/there.yaml'"),
            std::string::npos);
}

TEST_F(CliConfigTest, ProgramWithoutDataModulesHasNoDataSection) {
  data = Registry<DataModule>("data module");
  EXPECT_EQ(resolve({}).find("data"), nullptr);
  EXPECT_NE(error_of({file("data: {name: points}\n")}).find("this program has none"), std::string::npos);
}

/// The values of each line are one value of the option, and no value of another line is.
TEST_F(CliConfigTest, ValuesOfASweepAreEqualByWhatTheyMean) {
  const std::map<std::string, std::vector<std::vector<std::string>>> options = {
      {"trainer.strategy",
       {{"ddp", "{name: ddp}", "{ddp: {}}", "'ddp'", "{name: ddp, start_method: subprocess}"},
        {"ddp_threads", "{name: ddp_threads}", "{name: ddp, start_method: thread}", "{ddp: {start_method: thread}}"},
        {"ddp_spawn", "{name: ddp, start_method: fork}"},
        {"sharded", "{name: sharded}", "{name: sharded, stage: 3}", "{sharded: {stage: 03}}"},
        {"{name: sharded, stage: 2}"},
        {"{shard: 2}", "{shard: 02}", "{shard: {size: 2}}", "{shard: 2, replicate: 1}", "{shard: {size: 2, stage: 3}}",
         "{replicate: 1, shard: 2}", "{shard: 2, start_method: subprocess}"},
        {"{shard: 2, start_method: thread}"},
        {"{shard: 2, replicate: 2}", "{replicate: 2, shard: {size: 02}}"},
        {"{shard: auto}", "{shard: {size: auto}}"},
        {"{pipeline: {size: 2, micro_batches: 4}}", "{pipeline: {micro_batches: 04, size: 2}, shard: 1}"},
        {"{pipeline: {size: 2, micro_batches: 8}}"},
        {"auto"}}},
      {"trainer.devices",
       {{"2", "02", "'2'", "' 2'"},
        {"[1, 3]", "'1,3'", "'1, 3'", "[01, 3]"},
        {"-1", "'-1'", "[-1]"},
        {"auto", "'auto'"},
        {"[2]", "'2,'"}}},
      {"trainer.precision", {{"bf16-mixed", "'bf16-mixed'", "{name: bf16-mixed}"}, {"32-true"}, {"16-mixed"}}},
      {"trainer.init_from",
       {{"a.pth", "{path: a.pth}", "'a.pth'", "{path: a.pth, strict: true}"},
        {"{path: a.pth, strict: false}", "{strict: false, path: 'a.pth'}"},
        {"null"}}},
      {"optimizer",
       {{"adamw", "{name: adamw}", "{adamw: {}}", "{name: adamw, lr: 1e-3}", "{name: adamw, lr: 0.001}"},
        {"{name: adamw, groups: [{pattern: '*.bias', weight_decay: 0}]}",
         "{name: adamw, groups: [{weight_decay: 0.0, pattern: '*.bias'}]}",
         "{adamw: {groups: [{pattern: '*.bias', weight_decay: 0e0}]}}"},
        {"{name: adamw, groups: [{pattern: '*.weight', weight_decay: 0}]}"},
        {"{name: lookahead, base: adamw}", "{name: lookahead, base: {name: adamw}}",
         "{lookahead: {base: {adamw: {}}}}"},
        {"sgd"}}},
      {"data.sampler",
       {{"weighted", "{name: weighted}", "{weighted: {}}", "'weighted'"}, {"{name: weighted, weights: a}"}, {"null"}}},
      {"trainer.callbacks",
       {{"[early_stopping: {monitor: a, patience: 3}]", "[{name: early_stopping, monitor: a, patience: 03}]"},
        {"[early_stopping: {monitor: a, patience: 4}]"},
        {"[timer]", "[timer: {}]", "[{name: timer}]"}}},
  };
  for (const auto& [option, lines] : options) {
    sweep::SettingMeanings meanings([this](const sweep::Settings& settings) {
      std::vector<CliArguments::Setting> given;
      for (const auto& setting : settings) given.push_back({setting.option, setting.value});
      return resolve_config(merge_sources({}, given, names()), names());
    });
    std::map<size_t, size_t> line_of;
    for (size_t line = 0; line < lines.size(); ++line)
      for (const std::string& value : lines[line]) {
        const Config parsed = *Config::parse("value: " + value, {.source = "test"}).find("value");
        const auto [found, is_new] = line_of.try_emplace(meanings.number({{option, parsed}}), line);
        EXPECT_EQ(found->second, line) << option << ": " << value << " is as " << lines[found->second].front();
        EXPECT_EQ(is_new, value == lines[line].front()) << option << ": " << value;
      }
  }
}

TEST_F(CliConfigTest, SectionsBecomeObjects) {
  const Config config = resolve({file("model: {name: cnn, channels: 4}\n")});
  const auto module = make_section(modules, *config.find("model"), "model");
  EXPECT_NE(std::dynamic_pointer_cast<Cnn>(module), nullptr);
  EXPECT_EQ(module->init_name(), "cnn");
  EXPECT_EQ(module->init_options().to_flow(), "{channels: 4}");
}

}  // namespace
}  // namespace levin
