#include <levin/core/options/compatibility_options.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace levin {
namespace {

/// The trainer section after translation, and the notes given.
struct Translated {
  explicit Translated(const std::string& yaml) : config(Config::parse(yaml, {.source = "old.yaml"})) {
    log::set_sink([this](const std::string& line) { notes += line + "\n"; });
    try {
      translate_compatibility_options(config);
    } catch (...) {
      log::set_sink(nullptr);
      throw;
    }
    log::set_sink(nullptr);
  }
  std::string text(const char* key) const {
    const Config* node = config.find(key);
    return node == nullptr ? "(none)" : node->text();
  }
  Config config;
  std::string notes;
};

TEST(OlderOptions, StrategiesWereAccelerators) {
  for (const char* name : {"dp", "ddp", "ddp_spawn", "ddp2", "horovod"}) {
    for (const char* key : {"accelerator", "distributed_backend", "plugins"}) {
      const Translated translated(std::string("{") + key + ": " + name + "}");
      EXPECT_EQ(translated.text("strategy"), name) << key;
      EXPECT_EQ(translated.text(key), "(none)");
      EXPECT_NE(translated.notes.find(std::string("strategy: ") + name), std::string::npos) << translated.notes;
      EXPECT_NE(translated.notes.find("old.yaml"), std::string::npos) << translated.notes;
    }
  }
}

TEST(OlderOptions, DdpCpuIsDdpOnTheCpu) {
  const Translated translated("{accelerator: ddp_cpu}");
  EXPECT_EQ(translated.text("strategy"), "ddp");
  EXPECT_EQ(translated.text("accelerator"), "cpu");
}

TEST(OlderOptions, PluginsMayBeAList) { EXPECT_EQ(Translated("{plugins: [ddp]}").text("strategy"), "ddp"); }

TEST(OlderOptions, PresentSpellingsStay) {
  const Translated translated("{accelerator: cpu, strategy: ddp, use_distributed_sampler: false}");
  EXPECT_EQ(translated.text("accelerator"), "cpu");
  EXPECT_EQ(translated.text("strategy"), "ddp");
  EXPECT_EQ(translated.text("use_distributed_sampler"), "false");
  EXPECT_EQ(translated.notes, "");
}

TEST(OlderOptions, TheSamplerAndTheBackendOfMixedPrecision) {
  const Translated translated("{replace_sampler_ddp: false, amp_backend: apex}");
  EXPECT_EQ(translated.text("use_distributed_sampler"), "false");
  EXPECT_EQ(translated.text("replace_sampler_ddp"), "(none)");
  EXPECT_EQ(translated.text("amp_backend"), "(none)");
}

TEST(OlderOptions, ContradictionsNameBothSpellings) {
  for (const char* yaml :
       {"{accelerator: ddp, strategy: dp}", "{replace_sampler_ddp: true, use_distributed_sampler: true}",
        "{amp_backend: none}", "{tpu_cores: 8}"})
    EXPECT_THROW(Translated{yaml}, ConfigError) << yaml;
  EXPECT_EQ(Translated("{accelerator: ddp, strategy: ddp}").text("strategy"), "ddp");
  EXPECT_EQ(Translated("{tpu_cores: null}").text("tpu_cores"), "(none)");
}

TEST(OlderOptions, PrecisionsWereNumbers) {
  for (const auto& [older, present] :
       {std::pair{"16", "16-mixed"}, {"bf16", "bf16-mixed"}, {"32", "32-true"}, {"64", "64-true"}}) {
    const Translated translated(std::string("{precision: ") + older + "}");
    EXPECT_EQ(translated.text("precision"), present);
    EXPECT_NE(translated.notes.find(std::string("precision: ") + present), std::string::npos) << translated.notes;
  }
  const Translated present("{precision: bf16-true}");
  EXPECT_EQ(present.text("precision"), "bf16-true");
  EXPECT_EQ(present.notes, "");
  const Translated mapping("{precision: {name: 16-mixed, init_scale: 1024}}");
  EXPECT_EQ(mapping.notes, "");
}

TEST(OlderOptions, OtherNamesOfSharded) {
  const auto present = [](const std::string& yaml) { return present_strategy(Config::parse(yaml, {})); };
  EXPECT_EQ(present("ddp_sharded").find("name")->text(), "sharded");
  EXPECT_EQ(present("ddp_sharded").find("stage")->text(), "2");
  EXPECT_EQ(present("ddp_sharded_spawn").find("name")->text(), "sharded_spawn");
  EXPECT_EQ(present("fsdp").find("stage")->text(), "3");
  EXPECT_EQ(present("{name: fsdp, stage: 1, prefetch: 2}").find("stage")->text(), "1");
  EXPECT_EQ(present("{name: fsdp, stage: 1, prefetch: 2}").find("prefetch")->text(), "2");
  EXPECT_EQ(present("ddp").text(), "ddp");
  EXPECT_EQ(Translated("{plugins: [ddp_sharded]}").text("strategy"), "ddp_sharded");
}

TEST(OlderOptions, OtherNamesOfPipelineAndItsOptions) {
  const auto present = [](const std::string& yaml) { return present_strategy(Config::parse(yaml, {})); };
  for (const char* name : {"sequential", "rpc_sequential"}) {
    const Config alone = present(name);
    EXPECT_EQ(alone.find("name")->text(), "pipeline");
    EXPECT_EQ(alone.find("checkpoint")->text(), "except_last");
    EXPECT_EQ(alone.find("balance_by")->text(), "memory");
  }
  const Config all = present(
      "{name: rpc_sequential, balance: [2, 1], microbatches: 4, checkpoint: always, sequential_module: layers, "
      "balance_mode: balance_by_time, pipelined_backward: true}");
  EXPECT_EQ(all.to_flow(), present("{name: pipeline, balance: [2, 1], checkpoint: always, micro_batches: 4, "
                                   "sequential: layers, balance_by: time}")
                               .to_flow());
  EXPECT_EQ(present("{name: sequential, balance_mode: balance_by_size}").find("balance_by")->text(), "memory");
  EXPECT_EQ(present("{name: sequential, micro_batches: 2}").find("micro_batches")->text(), "2");
  // The present name has the present options only.
  EXPECT_NE(present("{name: pipeline, microbatches: 4}").find("microbatches"), nullptr);
  EXPECT_EQ(present("pipeline").text(), "pipeline");
  EXPECT_EQ(Translated("{plugins: [rpc_sequential]}").text("strategy"), "rpc_sequential");
  EXPECT_THROW(present("{name: sequential, microbatches: 2, micro_batches: 2}"), ConfigError);
  EXPECT_THROW(present("{name: sequential, balance_mode: time}"), ConfigError);
}

}  // namespace
}  // namespace levin
