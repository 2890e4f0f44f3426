#include <levin/core/options/options.h>

#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/precision/precision.h>

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace levin {
namespace {

using std::chrono::seconds;

Config parse(const std::string& yaml) { return Config::parse(yaml, {.source = "test.yaml"}); }

TrainerOptions options_from(const std::string& yaml) { return parse_options<TrainerOptions>(parse(yaml), "trainer"); }

std::string error_of(const std::string& yaml) {
  try {
    options_from(yaml);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// A value written to YAML and what is read from it, written again.
template <class T>
void expect_round_trip(const T& value, const std::string& yaml) {
  EXPECT_EQ(ConfigCodec<T>::dump(value).to_flow(), yaml);
  EXPECT_EQ(ConfigCodec<T>::dump(ConfigCodec<T>::parse(parse(yaml), "x")).to_flow(), yaml);
}

TEST(DurationTest, ReadsDaysHoursMinutesSeconds) {
  EXPECT_EQ(parse_duration("00:00:00:01"), seconds(1));
  EXPECT_EQ(parse_duration("00:00:01:00"), seconds(60));
  EXPECT_EQ(parse_duration("00:01:00:00"), seconds(3600));
  EXPECT_EQ(parse_duration("1:00:00:00"), seconds(86'400));
  EXPECT_EQ(parse_duration("02:03:04:05"), seconds(2 * 86'400 + 3 * 3600 + 4 * 60 + 5));
  EXPECT_EQ(parse_duration("00:36:00:00"), seconds(36 * 3600));
  EXPECT_EQ(parse_duration("365:00:00:00"), seconds(365 * 86'400));
}

TEST(DurationTest, RefusesEverythingElse) {
  for (const char* text : {"", "1", "01:00:00", "00:00:00:00:00", "00:00:00:1", "00:00:00:-1", "-1:00:00:00",
                           "a:00:00:00", "00:00:00:0x", ":00:00:00", "00:00:00:00 ", "999999999:00:00:00"})
    EXPECT_FALSE(parse_duration(text).has_value()) << text;
}

TEST(DurationTest, FormatIsTheInverse) {
  EXPECT_EQ(format_duration(seconds(0)), "00:00:00:00");
  EXPECT_EQ(format_duration(seconds(2 * 86'400 + 3 * 3600 + 4 * 60 + 5)), "02:03:04:05");
  EXPECT_EQ(format_duration(*parse_duration("00:36:00:00")), "01:12:00:00");
}

TEST(BatchLimitTest, IntegerIsACountAndPointAFraction) {
  const auto one = ConfigCodec<BatchLimit>::parse(parse("1"), "x");
  const auto all = ConfigCodec<BatchLimit>::parse(parse("1.0"), "x");
  EXPECT_TRUE(one.is_count());
  EXPECT_FALSE(all.is_count());
  EXPECT_TRUE(all.is_everything());
  EXPECT_FALSE(one.is_everything());
  EXPECT_EQ(one.resolve(10, "x"), 1);
  EXPECT_EQ(all.resolve(10, "x"), 10);
  EXPECT_TRUE(BatchLimit(0).is_zero());
  EXPECT_TRUE(BatchLimit(0.0).is_zero());
  EXPECT_TRUE(BatchLimit().is_everything());
  expect_round_trip(BatchLimit(1), "1");
  expect_round_trip(BatchLimit(1.0), "1.0");
  expect_round_trip(BatchLimit(0.25), "0.25");
  expect_round_trip(BatchLimit(0.0), "0.0");
  expect_round_trip(BatchLimit(1e-5), "1e-05");
}

TEST(BatchLimitTest, ResolvesAgainstALoader) {
  EXPECT_EQ(BatchLimit(5).resolve(3, "x"), 3);
  EXPECT_EQ(BatchLimit(0).resolve(3, "x"), 0);
  EXPECT_EQ(BatchLimit(0.5).resolve(7, "x"), 3);
  EXPECT_EQ(BatchLimit(0.0).resolve(7, "x"), 0);
  EXPECT_EQ(BatchLimit(0.5).resolve(0, "x"), 0);
}

TEST(BatchLimitTest, ResolvesAgainstAnUnsizedLoader) {
  EXPECT_EQ(BatchLimit(5).resolve(std::nullopt, "x"), 5);
  EXPECT_EQ(BatchLimit(1.0).resolve(std::nullopt, "x"), -1);
  EXPECT_EQ(BatchLimit(0.0).resolve(std::nullopt, "x"), 0);
  EXPECT_THROW(BatchLimit(0.5).resolve(std::nullopt, "x"), ConfigError);
}

TEST(BatchLimitTest, FractionThatLeavesNothingIsRefused) {
  try {
    BatchLimit(0.1).resolve(3, "trainer.limit_val_batches");
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("trainer.limit_val_batches leaves less than one batch: 0.1 of 3"),
              std::string::npos);
  }
}

TEST(BatchLimitTest, OnlyNumbersAreRead) {
  for (const char* text : {"all", "'1'", "[1]", "true", "null"})
    EXPECT_THROW(ConfigCodec<BatchLimit>::parse(parse(text), "x"), ConfigError) << text;
}

TEST(CheckIntervalTest, ThreeForms) {
  EXPECT_EQ(std::get<int64_t>(ConfigCodec<CheckInterval>::parse(parse("100"), "x").value()), 100);
  EXPECT_EQ(std::get<double>(ConfigCodec<CheckInterval>::parse(parse("0.25"), "x").value()), 0.25);
  EXPECT_EQ(std::get<seconds>(ConfigCodec<CheckInterval>::parse(parse("00:01:00:00"), "x").value()), seconds(3600));
  EXPECT_EQ(std::get<seconds>(CheckInterval("00:00:00:05").value()), seconds(5));
  expect_round_trip(CheckInterval(100), "100");
  expect_round_trip(CheckInterval(1.0), "1.0");
  expect_round_trip(CheckInterval(seconds(3600)), "00:01:00:00");
  EXPECT_THROW(ConfigCodec<CheckInterval>::parse(parse("often"), "x"), ConfigError);
  EXPECT_THROW(CheckInterval("often"), ConfigError);
}

TEST(FastDevRunTest, BooleanOrNumber) {
  EXPECT_EQ(ConfigCodec<FastDevRun>::parse(parse("true"), "x").batches(), 1);
  EXPECT_EQ(ConfigCodec<FastDevRun>::parse(parse("false"), "x").batches(), 0);
  EXPECT_EQ(ConfigCodec<FastDevRun>::parse(parse("7"), "x").batches(), 7);
  EXPECT_EQ(FastDevRun(true).batches(), 1);
  EXPECT_EQ(FastDevRun(3).batches(), 3);
  expect_round_trip(FastDevRun(), "false");
  expect_round_trip(FastDevRun(true), "true");
  expect_round_trip(FastDevRun(3), "3");
  EXPECT_THROW(ConfigCodec<FastDevRun>::parse(parse("0.5"), "x"), ConfigError);
}

TEST(DeterminismTest, BooleanOrWarn) {
  using Level = Determinism::Level;
  EXPECT_EQ(ConfigCodec<Determinism>::parse(parse("true"), "x").level(), Level::kOn);
  EXPECT_EQ(ConfigCodec<Determinism>::parse(parse("false"), "x").level(), Level::kOff);
  EXPECT_EQ(ConfigCodec<Determinism>::parse(parse("warn"), "x").level(), Level::kWarn);
  EXPECT_EQ(Determinism("warn").level(), Level::kWarn);
  expect_round_trip(Determinism(), "false");
  expect_round_trip(Determinism(true), "true");
  expect_round_trip(Determinism("warn"), "warn");
  EXPECT_THROW(ConfigCodec<Determinism>::parse(parse("maybe"), "x"), ConfigError);
  EXPECT_THROW(Determinism("maybe"), ConfigError);
}

TEST(LoggerSpecsTest, AllForms) {
  const auto names_of = [](const std::string& yaml) {
    std::vector<std::string> names;
    for (const auto& spec : ConfigCodec<LoggerSpecs>::parse(parse(yaml), "x").resolve())
      names.push_back(spec.name("x", "logger"));
    return names;
  };
  EXPECT_EQ(names_of("true"), (std::vector<std::string>{"csv", "tensorboard"}));
  EXPECT_EQ(names_of("null"), (std::vector<std::string>{"csv", "tensorboard"}));
  EXPECT_EQ(names_of("false"), std::vector<std::string>{});
  EXPECT_EQ(names_of("[]"), std::vector<std::string>{});
  EXPECT_EQ(names_of("csv"), std::vector<std::string>{"csv"});
  EXPECT_EQ(names_of("{csv: {flush_every: 2}}"), std::vector<std::string>{"csv"});
  EXPECT_EQ(names_of("[tensorboard, csv: {flush_every: 2}]"), (std::vector<std::string>{"tensorboard", "csv"}));
}

TEST(LoggerSpecsTest, DumpReadsBackTheSame) {
  expect_round_trip(LoggerSpecs(), "true");
  expect_round_trip(LoggerSpecs(false), "false");
  expect_round_trip(LoggerSpecs{"csv"}, "[csv]");
}

TEST(TrainerOptionsTest, DefaultsArePublishedOnes) {
  const TrainerOptions options;
  EXPECT_FALSE(options.max_epochs.has_value());
  EXPECT_EQ(options.max_steps, -1);
  EXPECT_EQ(options.num_sanity_val_steps, 2);
  EXPECT_EQ(options.log_every_n_steps, 50);
  EXPECT_EQ(options.accumulate_grad_batches, 1);
  EXPECT_EQ(options.check_val_every_n_epoch, 1);
  EXPECT_TRUE(options.overfit_batches.is_zero());
  EXPECT_TRUE(options.limit_train_batches.is_everything());
  EXPECT_EQ(options.gradient_clip_algorithm, "norm");
  EXPECT_EQ(options.precision.name("precision", "precision"), "32-true");
  EXPECT_EQ(options.strategy.name("strategy", "strategy"), "auto");
  EXPECT_NO_THROW(schema_of<TrainerOptions>().validate(options, "trainer"));
}

// Names that configurations in the world rely on: adding one is fine, removing or renaming one breaks them.
TEST(TrainerOptionsTest, NamesAreFrozen) {
  const std::vector<std::string> frozen = {"max_epochs",
                                           "min_epochs",
                                           "max_steps",
                                           "min_steps",
                                           "max_time",
                                           "handle_signals",
                                           "accelerator",
                                           "devices",
                                           "gpus",
                                           "auto_select_gpus",
                                           "num_nodes",
                                           "strategy",
                                           "precision",
                                           "sync_batchnorm",
                                           "float32_matmul_precision",
                                           "memory_format",
                                           "graph",
                                           "own_kernels",
                                           "fast_dev_run",
                                           "limit_train_batches",
                                           "limit_val_batches",
                                           "limit_test_batches",
                                           "limit_predict_batches",
                                           "overfit_batches",
                                           "detect_anomaly",
                                           "barebones",
                                           "val_check_interval",
                                           "check_val_every_n_epoch",
                                           "num_sanity_val_steps",
                                           "inference_mode",
                                           "adapters",
                                           "optimizer",
                                           "scheduler",
                                           "accumulate_grad_batches",
                                           "weigh_losses",
                                           "gradient_clip_val",
                                           "gradient_clip_algorithm",
                                           "callbacks",
                                           "logger",
                                           "log_every_n_steps",
                                           "enable_checkpointing",
                                           "enable_progress_bar",
                                           "enable_model_summary",
                                           "profiler",
                                           "default_root_dir",
                                           "run_dir",
                                           "init_from",
                                           "use_distributed_sampler",
                                           "reload_dataloaders_every_n_epochs",
                                           "deterministic",
                                           "benchmark",
                                           "activation_checkpointing"};
  EXPECT_EQ(schema_of<TrainerOptions>().names(), frozen);
}

TEST(TrainerOptionsTest, EveryOptionIsDocumented) {
  for (const auto& field : schema_of<TrainerOptions>().fields()) {
    EXPECT_FALSE(field.doc.empty()) << field.name;
    EXPECT_NE(field.doc.back(), '.') << field.name;
    EXPECT_FALSE(field.type.empty()) << field.name;
  }
}

TEST(TrainerOptionsTest, DefaultsReadBackTheSame) {
  const Config defaults = schema_of<TrainerOptions>().dump(TrainerOptions());
  const auto again = options_from(defaults.to_yaml());
  EXPECT_TRUE(schema_of<TrainerOptions>().dump(again) == defaults) << defaults.to_yaml();
}

TEST(TrainerOptionsTest, ReadsYaml) {
  const auto options = options_from(
      "{max_epochs: 2, max_time: '00:00:10:00', devices: [1, 3], strategy: {name: ddp, bucket_cap_mb: 25}, "
      "precision: bf16-mixed, callbacks: [timer, {early_stopping: {monitor: val_loss}}], logger: [csv], "
      "limit_val_batches: 3, gradient_clip_val: 0.5, deterministic: warn, benchmark: true, "
      "check_val_every_n_epoch: null, val_check_interval: 0.5}");
  EXPECT_EQ(options.max_epochs, 2);
  EXPECT_EQ(options.max_time->seconds(), seconds(600));
  EXPECT_EQ(options.strategy.name("strategy", "strategy"), "ddp");
  ASSERT_EQ(options.callbacks.size(), 2U);
  EXPECT_EQ(options.callbacks[1].name("callbacks", "callback"), "early_stopping");
  EXPECT_EQ(options.logger.specs().size(), 1U);
  EXPECT_EQ(options.limit_val_batches.count(), 3);
  EXPECT_EQ(options.gradient_clip_val, 0.5);
  EXPECT_EQ(options.deterministic.level(), Determinism::Level::kWarn);
  EXPECT_EQ(options.benchmark, true);
  EXPECT_FALSE(options.check_val_every_n_epoch.has_value());
}

TEST(TrainerOptionsTest, TypingErrorGetsTheNearestName) {
  EXPECT_NE(error_of("{max_epoch: 3}")
                .find("test.yaml:1:2: unknown key 'max_epoch' in 'trainer'; did you mean 'max_epochs'?"),
            std::string::npos);
}

TEST(TrainerOptionsTest, ValuesOutOfRangeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"max_epochs: -2", "trainer.max_epochs must be at least -1; got -2"},
      {"min_steps: -1", "trainer.min_steps must be at least 0; got -1"},
      {"max_time: '00:00:00:00'", "trainer.max_time must be longer than 00:00:00:00"},
      {"max_time: 5 minutes", "trainer.max_time: expected a time as DD:HH:MM:SS; got '5 minutes'"},
      {"accelerator: cudda", "trainer.accelerator must be auto, cpu, cuda, gpu, or the name of an accelerator"},
      {"num_nodes: 0", "trainer.num_nodes must be at least 1; got 0"},
      {"fast_dev_run: -1", "trainer.fast_dev_run must be at least 0"},
      {"limit_train_batches: -1", "trainer.limit_train_batches must be a number of batches from 0"},
      {"limit_val_batches: 1.5", "trainer.limit_val_batches must be"},
      {"overfit_batches: -0.5", "trainer.overfit_batches must be"},
      {"val_check_interval: 0", "trainer.val_check_interval must be at least 1 batch"},
      {"val_check_interval: 1.5", "trainer.val_check_interval must be"},
      {"check_val_every_n_epoch: 0", "trainer.check_val_every_n_epoch must be at least 1; got 0"},
      {"num_sanity_val_steps: -2", "trainer.num_sanity_val_steps must be at least -1; got -2"},
      {"accumulate_grad_batches: 0", "trainer.accumulate_grad_batches must be at least 1; got 0"},
      {"gradient_clip_val: -1", "trainer.gradient_clip_val must be at least 0; got -1"},
      {"gradient_clip_algorithm: sign",
       "trainer.gradient_clip_algorithm must be one of norm, value, adaptive; got sign"},
      {"memory_format: channels-last",
       "trainer.memory_format must be one of contiguous, channels_last; got channels-last"},
      {"float32_matmul_precision: tf32",
       "trainer.float32_matmul_precision must be one of highest, high, medium; got tf32"},
      {"log_every_n_steps: 0", "trainer.log_every_n_steps must be at least 1; got 0"},
      {"default_root_dir: ''", "trainer.default_root_dir must be the path of a folder"},
      {"reload_dataloaders_every_n_epochs: -1", "trainer.reload_dataloaders_every_n_epochs must be at least 0; got -1"},
      {"devices: none", "trainer.devices is not understood; got 'none'"},
  };
  for (const auto& [yaml, message] : wrong) {
    const std::string error = error_of(yaml);
    EXPECT_NE(error.find(message), std::string::npos) << yaml << " gave: " << error;
    EXPECT_NE(error.find("test.yaml:1:"), std::string::npos) << yaml << " gave: " << error;
  }
}

}  // namespace
}  // namespace levin
