// Runs that train adapters: checkpoints, and several ranks.

#include "../support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/models/causal_lm.h>
#include <levin/core/nn/adapters.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>

namespace levin {
namespace {

class AdapterTraining : public ::testing::Test {
 protected:
  AdapterTraining() {
    std::ofstream(folder_ + "/config.json") << R"({"model_type": "llama", "vocab_size": 38, "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
      "initializer_range": 0.2})";
    seed_everything(3);
    const at::Tensor tokens = at::randint(38, {24, 9});
    data_ = Batch{{"tokens", tokens.slice(1, 0, 8)}, {"next", tokens.slice(1, 1, 9)}};
  }
  struct Run {
    std::string strategy = "single_device";
    int64_t ranks = 1;
    int64_t data_ranks = 0;  ///< that divide the data; 0: all
    std::string adapters = "{name: lora, rank: 4, alpha: 8, targets: [\"*.q_proj\", \"*.v_proj\", \"*.down_proj\"]}";
    std::string resume = {};
    std::string save = {};
    int64_t max_steps = -1;
    std::string trainer = "";
  };
  std::shared_ptr<CausalLm> fit(const Run& run) {
    CausalLmOptions model{.path = folder_ + "/config.json", .pretrained = false};
    before_.clear();
    seed_everything(11);
    for (const auto& [name, parameter] : named_unique_parameters(*make<CausalLm>(model)))
      before_[name] = parameter.detach().clone();
    seed_everything(11);
    model.adapters = parse_options<AdapterOptions>(Config::parse(run.adapters, {}), "adapters");
    auto module = make<CausalLm>(model);
    TrainerOptions options = parse_options<TrainerOptions>(
        Config::parse(
            fmt::format("{{optimizer: {{name: adamw, lr: 0.02}}, strategy: {}{}}}", run.strategy, run.trainer), {}),
        "");
    const TrainerOptions quiet = testing::quiet(2);
    options.max_epochs = 2;
    options.devices = run.ranks;
    options.accelerator = quiet.accelerator;
    options.logger = quiet.logger;
    options.enable_checkpointing = !options.callbacks.empty();
    options.enable_progress_bar = options.enable_model_summary = false;
    options.default_root_dir = folder_;
    if (run.max_steps >= 0) options.max_steps = run.max_steps;
    Trainer trainer(options);
    const auto dataset = std::make_shared<data::TensorDataset>(data_);
    // Global batches of 4.
    trainer.fit(
        module,
        DataLoader(dataset, {.batch_size = 4 / (run.data_ranks > 0 ? run.data_ranks : run.ranks), .shuffle = true}),
        DataLoaders(), run.resume);
    steps_ = trainer.global_step();
    if (!run.save.empty()) trainer.save_checkpoint(run.save);
    return module;
  }
  /// Trained parameters by name; the others must have the values that they began with.
  std::map<std::string, at::Tensor> trained(const CausalLm& module) const {
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, parameter] : named_unique_parameters(module)) {
      if (parameter.requires_grad())
        values[name] = parameter.detach().clone();
      else
        EXPECT_TRUE(at::equal(parameter.to(at::kFloat), before_.at(name))) << name;
    }
    return values;
  }
  static std::map<std::string, at::Tensor> trained_of(const CausalLm& module) {
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, parameter] : named_unique_parameters(module))
      if (parameter.requires_grad()) values[name] = parameter.detach();
    return values;
  }
  static void expect_near(const std::map<std::string, at::Tensor>& got, const std::map<std::string, at::Tensor>& wanted,
                          double tolerance) {
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      EXPECT_GT(tensor.abs().max().item<double>(), 1e-3) << name;
      EXPECT_LE((got.at(name) - tensor).abs().max().item<double>(), tolerance) << name;
    }
  }

  const std::string folder_ = testing::fresh_folder("adapter_training");
  Batch data_;
  std::map<std::string, at::Tensor> before_;
  int64_t steps_ = 0;
};

TEST_F(AdapterTraining, IsThatOfOneDeviceOnSeveralRanks) {
  const auto expected = trained(*fit({}));
  EXPECT_EQ(steps_, 12);
  EXPECT_EQ(expected.size(), 18);
  for (const std::string strategy : {"ddp_threads", "{name: sharded_threads, stage: 1}",
                                     "{name: sharded_threads, stage: 2}", "{name: sharded_threads, stage: 3}"}) {
    SCOPED_TRACE(strategy);
    expect_near(trained(*fit({.strategy = strategy, .ranks = 2})), expected, 1e-5);
    EXPECT_EQ(steps_, 12);
  }
}

TEST_F(AdapterTraining, GoesOnToTheBitFromCheckpointsOfAdaptersAlone) {
  const std::string only =
      "{name: lora, rank: 4, dropout: 0.1, targets: [\"*.q_proj\"], modules_to_save: [\"*.norm\"], save_adapters_only: "
      "true}";
  const auto expected = trained(*fit({.adapters = only}));
  const std::string checkpoint = folder_ + "/checkpoint";
  fit({.adapters = only, .save = checkpoint, .max_steps = 7});
  const State tree = open_checkpoint(checkpoint);
  EXPECT_EQ(tree.at("model").as_map().size(), 7);
  for (const auto& [name, tensor] : tree.at("model").as_map())
    EXPECT_TRUE(name.find(".adapters.") != std::string::npos || name == "model.net.4.norm.weight") << name;
  expect_near(trained(*fit({.adapters = only, .resume = checkpoint})), expected, 0);
  EXPECT_EQ(steps_, 12);
}

TEST_F(AdapterTraining, GoesOnToTheBitFromWholeCheckpoints) {
  const auto expected = trained(*fit({}));
  const std::string checkpoint = folder_ + "/checkpoint";
  fit({.save = checkpoint, .max_steps = 7});
  EXPECT_GT(open_checkpoint(checkpoint).at("model").as_map().size(), 18);
  expect_near(trained(*fit({.resume = checkpoint})), expected, 0);
}

TEST_F(AdapterTraining, ComputesInOtherPrecisions) {
  const auto expected = trained(*fit({}));
  const auto wide = trained(*fit({.trainer = ", precision: 64-true"}));
  ASSERT_EQ(wide.size(), expected.size());
  for (const auto& [name, tensor] : wide) {
    EXPECT_EQ(tensor.scalar_type(), at::kDouble);
    EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), 1e-4) << name;
  }
  const auto mixed = trained(*fit({.trainer = ", precision: bf16-mixed"}));
  for (const auto& [name, tensor] : mixed) {
    EXPECT_EQ(tensor.scalar_type(), at::kFloat);
    EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), 0.2) << name;
  }
}

TEST_F(AdapterTraining, OverWeightsInFewBitsIsThatOfOneDeviceAndGoesOnToTheBit) {
  for (const std::string rest : {"quantize: nf4", "quantize: nf4, save_adapters_only: true", "quantize: int8"}) {
    SCOPED_TRACE(rest);
    const std::string adapters =
        "{name: lora, rank: 4, alpha: 8, targets: [\"*.q_proj\", \"*.down_proj\"], " + rest + "}";
    const auto expected = trained(*fit({.adapters = adapters}));
    EXPECT_EQ(expected.size(), 12);
    for (const std::string strategy : {"ddp_threads", "{name: sharded_threads, stage: 3}"}) {
      SCOPED_TRACE(strategy);
      expect_near(trained(*fit({.strategy = strategy, .ranks = 2, .adapters = adapters})), expected, 1e-5);
    }
    const std::string checkpoint = folder_ + "/checkpoint";
    fit({.adapters = adapters, .save = checkpoint, .max_steps = 7});
    const auto saved = open_checkpoint(checkpoint).at("model").as_map();
    EXPECT_EQ(saved.contains("model.net.1.self_attn.q_proj.quantized.codes"), rest.find("only") == std::string::npos);
    EXPECT_FALSE(saved.contains("model.net.1.self_attn.q_proj.weight"));
    expect_near(trained(*fit({.adapters = adapters, .resume = checkpoint})), expected, 0);
  }
}

TEST_F(AdapterTraining, OverWeightsInFewBitsComputesInOtherPrecisionsAndRecorded) {
  const std::string adapters = "{name: lora, rank: 4, alpha: 8, targets: [\"*\"], quantize: nf4}";
  const auto expected = trained(*fit({.adapters = adapters}));
  ::testing::internal::CaptureStderr();
  const auto recorded = trained(*fit({.adapters = adapters, .trainer = ", graph: true"}));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::Not(::testing::HasSubstr("not recorded")));
  expect_near(recorded, expected, 0);
  for (const std::string precision : {"64-true", "bf16-mixed"})
    for (const auto& [name, tensor] : trained(*fit({.adapters = adapters, .trainer = ", precision: " + precision})))
      EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), precision == "64-true" ? 1e-4 : 0.2) << name;
}

TEST_F(AdapterTraining, OverWeightsInFewBitsIsWrittenMerged) {
  const auto module = fit({.adapters = "{name: lora, rank: 4, alpha: 8, targets: [\"*.q_proj\"], quantize: nf4}"});
  module->save_folder(folder_ + "/merged");
  const auto plain = make<CausalLm>({.path = folder_ + "/merged"});
  const Batch batch{{"tokens", data_["tokens"]}};
  const at::NoGradGuard no_gradients;
  const at::Tensor expected = module->predict_step(batch, 0)["logits"];
  EXPECT_LT((plain->predict_step(batch, 0)["logits"] - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
  module->save_adapter(folder_ + "/adapter");
  const auto other = make<CausalLm>({.path = folder_ + "/config.json", .pretrained = false});
  other->load_adapter(folder_ + "/adapter");
  const auto written = trained_of(*module), read = trained_of(*other);
  ASSERT_EQ(written.size(), 6);
  for (const auto& [name, tensor] : written) EXPECT_TRUE(at::equal(read.at(name), tensor)) << name;
}

TEST_F(AdapterTraining, OverWeightsInFewBitsIsNotCutOverRanks) {
  std::string message;
  try {
    fit({.strategy = "{tensor: 2, start_method: thread}",
         .ranks = 2,
         .adapters = "{name: lora, rank: 4, targets: [\"*.q_proj\"], quantize: nf4}"});
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, ::testing::HasSubstr("is held in nf4, which is not cut over ranks; hint: {shard: 2}"));
}

TEST_F(AdapterTraining, OfLayersThatAreCutIsThatOfOneDevice) {
  for (const std::string more :
       {"name: lora", "name: rslora, modules_to_save: [\"*.norm\"], save_adapters_only: true"}) {
    SCOPED_TRACE(more);
    const std::string adapters = "{rank: 4, alpha: 8, targets: [\"*_proj\"], " + more + "}";
    const auto expected = trained(*fit({.adapters = adapters}));
    EXPECT_GE(expected.size(), 42);
    const std::string cut = "{tensor: 2, start_method: thread}";
    expect_near(trained(*fit({.strategy = cut, .ranks = 2, .data_ranks = 1, .adapters = adapters})), expected, 1e-5);
    expect_near(trained(*fit({.strategy = "{tensor: 2, shard: 2, start_method: thread}",
                              .ranks = 4,
                              .data_ranks = 2,
                              .adapters = adapters})),
                expected, 1e-5);
    for (const std::string mesh :
         {"tensor: {size: 2, sequence_parallel: true}", "shard: 2, tensor: {size: 2, sequence_parallel: true}"}) {
      SCOPED_TRACE(mesh);
      const int64_t shards = mesh.starts_with("shard") ? 2 : 1;
      expect_near(trained(*fit({.strategy = "{" + mesh + ", start_method: thread}",
                                .ranks = 2 * shards,
                                .data_ranks = shards,
                                .adapters = adapters})),
                  expected, 1e-5);
    }
    // From a checkpoint of two ranks to one, and back.
    const std::string checkpoint = folder_ + "/checkpoint";
    fit({.strategy = cut,
         .ranks = 2,
         .data_ranks = 1,
         .adapters = adapters,
         .trainer = ", max_steps: 7, callbacks: [{model_checkpoint: {every_n_train_steps: 7, filename: cut, dirpath: " +
                    folder_ + "/cut, enable_version_counter: false}}]"});
    expect_near(trained(*fit({.adapters = adapters, .resume = folder_ + "/cut/cut"})), expected, 1e-5);
    fit({.adapters = adapters, .save = checkpoint, .max_steps = 7});
    expect_near(
        trained(*fit({.strategy = cut, .ranks = 2, .data_ranks = 1, .adapters = adapters, .resume = checkpoint})),
        expected, 1e-5);
  }
}

}  // namespace
}  // namespace levin
