#include "tests/conformance/strategy_case.h"

#include <levin/core/base/error.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/comm/collective.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/options/mesh_strategy.h>

#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string translated(const std::string& mesh, int64_t ranks) {
  return strategy_of_mesh(Config::parse(mesh, {}), ranks).to_flow();
}

TEST(MeshStrategy, IsTheOneThatDividesSo) {
  EXPECT_EQ(translated("{replicate: auto}", 4), "{name: ddp}");
  EXPECT_EQ(translated("{replicate: {bucket_cap_mb: 5}, backend: gloo}", 4),
            "{name: ddp, bucket_cap_mb: 5, backend: gloo}");
  EXPECT_EQ(translated("{shard: auto}", 4), "{name: sharded, shard_group: 4}");
  EXPECT_EQ(translated("{replicate: 2, shard: {size: auto, stage: 2}, start_method: thread}", 8),
            "{name: sharded, stage: 2, start_method: thread, shard_group: 4}");
  EXPECT_EQ(translated("{pipeline: auto}", 4), "{name: pipeline, data_parallel: 1}");
  EXPECT_EQ(translated("{pipeline: {size: 2, micro_batches: 6}, replicate: auto}", 8),
            "{name: pipeline, micro_batches: 6, data_parallel: 4}");
  EXPECT_EQ(translated("{pipeline: 2, replicate: 2, shard: {stage: 1}}", 8),
            "{name: pipeline, data_parallel: 4, shard_stage: 1, shard_group: 2, shard_optimizer: true}");
  EXPECT_EQ(translated("{pipeline: 2, shard: {size: 2, stage: 3, prefetch: 0, keep_window_gradients: true}}", 4),
            "{name: pipeline, data_parallel: 2, shard_stage: 3, shard_prefetch: 0, shard_keep_window_gradients: true, "
            "shard_group: 2, shard_optimizer: true}");
  EXPECT_EQ(translated("{tensor: auto}", 4), "{name: tensor, tensor_group: 4}");
  EXPECT_EQ(translated("{replicate: auto, tensor: {size: 2, bucket_cap_mb: 5}, start_method: thread}", 8),
            "{name: tensor, bucket_cap_mb: 5, start_method: thread, tensor_group: 2}");
  EXPECT_EQ(translated("{replicate: 2, shard: {size: 2, stage: 2}, tensor: {size: 2, plan: {head: column}}}", 8),
            "{name: sharded, stage: 2, shard_group: 2, tensor_plan: {head: column}, tensor_group: 2}");
  EXPECT_EQ(
      translated(
          "{pipeline: {size: 2, micro_batches: 2}, tensor: {size: 2, plan: {head: whole}, sequence_parallel: true}}",
          4),
      "{name: pipeline, micro_batches: 2, tensor_plan: {head: whole}, "
      "tensor_sequence_parallel: true, tensor_group: 2, data_parallel: 1}");
  EXPECT_EQ(translated("{pipeline: 2, replicate: 2, shard: 2, tensor: auto}", 16),
            "{name: pipeline, tensor_group: 2, data_parallel: 4, shard_group: 2, shard_optimizer: true}");
  EXPECT_EQ(translated("{replicate: auto, context: {size: 2, dimension: 2}, start_method: thread}", 8),
            "{name: context, dimension: 2, start_method: thread, context_group: 2}");
  // Dimensions of one rank, whose options are checked and do nothing.
  EXPECT_EQ(translated("{pipeline: 1, replicate: 1, shard: 1}", 1), "{name: ddp}");
  EXPECT_EQ(translated("{pipeline: {size: auto, schedule: gpipe}, shard: 4}", 4), "{name: sharded, shard_group: 4}");
}

TEST(MeshStrategy, FitsTheRanksWithAnySizesAndOneThatIsLeft) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::map<std::string, int64_t> sizes;
    int64_t ranks = 1;
    for (const char* name : {"pipeline", "replicate", "shard"})
      ranks *= sizes[name] = std::uniform_int_distribution<int64_t>(1, 5)(random);
    const auto left = static_cast<size_t>(std::uniform_int_distribution<int64_t>(0, 3)(random));
    std::string text;
    for (size_t i = 0; const auto& [name, size] : sizes)
      text += fmt::format("{}{}: {}", i == 0 ? "{" : ", ", name, i == left ? "auto" : std::to_string(size)), ++i;
    const Config strategy = strategy_of_mesh(Config::parse(text + "}", {}), ranks);
    const auto option = [&](const char* name) {
      const Config* value = strategy.find(name);
      return value == nullptr ? 1 : std::stoll(value->text());
    };
    SCOPED_TRACE(text);
    const std::string name = strategy.find("name")->text();
    EXPECT_EQ(name, sizes["pipeline"] > 1 ? "pipeline" : sizes["shard"] > 1 ? "sharded" : "ddp");
    EXPECT_EQ(option("data_parallel"), name == "pipeline" ? sizes["replicate"] * sizes["shard"] : 1);
    EXPECT_EQ(option("shard_group"), name == "ddp" ? 1 : sizes["shard"]);
  }
}

TEST(MeshStrategy, SaysWhatDoesNotFit) {
  const auto refusal = [](const std::string& mesh, int64_t ranks) {
    try {
      return translated(mesh, ranks);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refusal("{pipeline: 2, replicate: 3, shard: auto}", 8),
              HasSubstr("the sizes do not fit the ranks; got 8 ranks = pipeline 2 x replicate 3 x shard ?"));
  EXPECT_THAT(refusal("{pipeline: 2, shard: 2}", 8), HasSubstr("got 8 ranks = pipeline 2 x shard 2; hint"));
  EXPECT_THAT(refusal("{replicate: 2, shard: 2}", 1), HasSubstr("got 1 rank = replicate 2 x shard 2"));
  EXPECT_THAT(refusal("{replicate: 9000000000000000000, shard: 9000000000000000000}", 4), HasSubstr("do not fit"));
  EXPECT_THAT(refusal("{pipeline: auto, shard: auto}", 8),
              HasSubstr("only one size may be auto; got 8 ranks = pipeline ? x shard ?"));
  EXPECT_THAT(refusal("{pipeline: 2, shards: 2}", 4), HasSubstr("trainer.strategy.shards is no dimension"));
  EXPECT_THAT(refusal("{pipeline: 2, shards: 2}", 4), HasSubstr("did you mean 'shard'?"));
  EXPECT_THAT(refusal("{expert: 2, shard: 2}", 4), HasSubstr("trainer.strategy.expert is no dimension"));
  for (const char* other : {"pipeline", "tensor"})
    EXPECT_THAT(refusal(fmt::format("{{context: 2, {}: 2}}", other), 4),
                HasSubstr(fmt::format(
                    "context 2 does not work beside {} 2 yet; valid beside context: replicate and shard", other)));
  EXPECT_THAT(refusal("{shard: 2, context: {size: 2, bucket_cap_mb: 5}}", 4),
              HasSubstr("trainer.strategy.context.bucket_cap_mb does not work beside shard, where context has the "
                        "options dimension, tensors and method"));
  EXPECT_THAT(refusal("{context: {size: 4, context_group: 2}}", 4), HasSubstr("is what the sizes of the mesh say"));
  EXPECT_THAT(refusal("{pipeline: 2, tensor: {size: 2, bucket_cap_mb: 5}}", 4),
              HasSubstr("trainer.strategy.tensor.bucket_cap_mb does not work beside pipeline, where tensor has the "
                        "options plan and sequence_parallel"));
  EXPECT_THAT(
      refusal("{shard: 2, tensor: {size: 2, bucket_cap_mb: 5}}", 4),
      HasSubstr("trainer.strategy.tensor.bucket_cap_mb does not work beside shard, where tensor has the options "
                "plan and sequence_parallel"));
  EXPECT_THAT(refusal("{shard: {size: 2, tensor_group: 2}, replicate: 2}", 4),
              HasSubstr("is what the sizes of the mesh say"));
  EXPECT_THAT(refusal("{tensor: {size: 4, tensor_group: 2}}", 4), HasSubstr("is what the sizes of the mesh say"));
  for (const char* size : {"0", "-1", "two", "2.5", "'2'", "[2]", "null"})
    EXPECT_THAT(refusal(fmt::format("{{shard: {}, replicate: 2}}", size), 4),
                HasSubstr("trainer.strategy.shard: expected a number of ranks, at least 1, or auto"));
  EXPECT_THAT(refusal("{shard: {size: none}}", 4), HasSubstr("trainer.strategy.shard.size: expected"));
  EXPECT_THAT(refusal("{shard: {size: 4, shard_group: 2}}", 4), HasSubstr("is what the sizes of the mesh say"));
  EXPECT_THAT(refusal("{pipeline: {size: 4, data_parallel: 2}}", 4), HasSubstr("is what the sizes of the mesh say"));
  EXPECT_THAT(refusal("{shard: {size: 4, backend: gloo}}", 4), HasSubstr("write it beside the dimensions"));
  EXPECT_THAT(refusal("{shard: {size: 4, stages: 2}}", 4), HasSubstr("trainer.strategy.shard"));
  EXPECT_THAT(refusal("{pipeline: 2, shard: {size: 2, stage: 4}}", 4), HasSubstr("trainer.strategy.shard.stage"));
  EXPECT_THAT(refusal("{pipeline: 2, shard: {size: 2, offload: true}}", 4),
              HasSubstr("trainer.strategy.shard.offload does not work beside pipeline"));
  EXPECT_THAT(refusal("{pipeline: {size: 2, shard_stage: 3}, shard: 2}", 4), HasSubstr("trainer.strategy.shard.stage"));
  EXPECT_THAT(refusal("{shard: 2, replicate: {size: 2, gradient_compression: fp16}}", 4),
              HasSubstr("trainer.strategy.replicate.gradient_compression does not work beside shard"));
}

TEST(MeshStrategy, IsNotTheFormOfANameWithOptions) {
  const auto is_a_mesh = [](const char* text) { return is_mesh(Config::parse(text, {})); };
  EXPECT_FALSE(is_a_mesh("pipeline"));
  EXPECT_FALSE(is_a_mesh("{name: pipeline, micro_batches: 2}"));
  EXPECT_FALSE(is_a_mesh("{pipeline: {micro_batches: 2}}"));
  EXPECT_FALSE(is_a_mesh("{ddp: {backend: gloo}}"));
  EXPECT_TRUE(is_a_mesh("{pipeline: {size: 2, micro_batches: 2}}"));
  EXPECT_TRUE(is_a_mesh("{pipeline: auto}"));
  EXPECT_TRUE(is_a_mesh("{shard: {stage: 2}}"));
  EXPECT_TRUE(is_a_mesh("{pipeline: {micro_batches: 2}, replicate: 2}"));
}

TEST(RankMesh, TellsEachRankWhereItIs) {
  std::mutex mutex;
  std::map<int64_t, std::vector<int64_t>> coordinates;
  std::map<int64_t, std::vector<int64_t>> sums;  // of the ranks of each group
  TrainingRun run{.epochs = 1};
  run.configure = [&](TrainerOptions& options) {
    options.callbacks = {make<LambdaCallback>({.on_train_start = [&](Trainer& trainer, Module&) {
      const RankMesh mesh = trainer.mesh();
      std::vector<int64_t> own;
      std::vector<int64_t> totals;
      for (const char* dimension : {"pipeline", "replicate", "shard"}) {
        EXPECT_EQ(mesh.size(dimension), 2);
        own.push_back(mesh.coordinate(dimension));
        const at::Tensor total = at::full({1}, trainer.global_rank(), at::kLong);
        mesh.group(dimension).all_reduce(total, ReduceOp::kSum)->wait();
        totals.push_back(total.item<int64_t>());
        EXPECT_EQ(mesh.group(dimension).rank(), own.back());
      }
      EXPECT_THROW(mesh.size("data"), Error);
      const std::lock_guard lock(mutex);
      coordinates[trainer.global_rank()] = own;
      sums[trainer.global_rank()] = totals;
    }})};
  };
  train(run, {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, replicate: 2, shard: 2"});
  ASSERT_EQ(coordinates.size(), 8u);
  EXPECT_THAT(coordinates[5], ElementsAre(1, 0, 1));
  EXPECT_THAT(sums[5], ElementsAre(1 + 5, 5 + 7, 4 + 5));
  EXPECT_THAT(coordinates[2], ElementsAre(0, 1, 0));
  EXPECT_THAT(sums[2], ElementsAre(2 + 6, 0 + 2, 2 + 3));
}

TEST(RankMesh, OfOneDeviceHasOnePlace) {
  TrainingRun run{.epochs = 1};
  run.configure = [](TrainerOptions& options) {
    options.callbacks = {make<LambdaCallback>({.on_train_start = [](Trainer& trainer, Module&) {
      EXPECT_EQ(trainer.mesh().size("shard"), 1);
      EXPECT_EQ(trainer.mesh().coordinate("replicate"), 0);
      EXPECT_EQ(trainer.mesh().group("pipeline").world_size(), 1);
    }})};
  };
  train_on_one_device(run);
}

// ---- Checkpoints

/// Whose training ends an epoch before its first batch: a checkpoint of it has what was loaded.
class Untrained : public Net {
 public:
  using Options = NetOptions;
  explicit Untrained(const Options& options) : Net(options) {}
  bool on_train_batch_start(const Batch& /*batch*/, int64_t /*batch_idx*/) override {
    return trainer().global_step() < 7;
  }
};

/// With the trainer's optimizer.
class UntrainedByName : public Untrained {
 public:
  explicit UntrainedByName(const Options& options) : Untrained(options) {}
  OptimizerConfigs configure_optimizers() override { return Module::configure_optimizers(); }
};

/// The checkpoint of such a run on a mesh, in its last epoch. `optimizer`: of the trainer; empty: the module's.
std::string saved_by(const StrategyCase& mesh, const std::string& ckpt, int64_t epochs,
                     const std::string& optimizer = "") {
  seed_everything(7);
  const std::shared_ptr<Module> module =
      optimizer.empty() ? std::shared_ptr<Module>(make<Untrained>({})) : make<UntrainedByName>({});
  const std::string path = fresh_folder("mesh") + "/saved";
  TrainingRun run{.epochs = epochs};
  run.configure = [&](TrainerOptions& options) {
    options.callbacks = {make<LambdaCallback>(
        {.on_train_epoch_end = [path](Trainer& trainer, Module&) { trainer.save_checkpoint(path); }})};
  };
  TrainerOptions options = trainer_options(run, mesh);
  if (!optimizer.empty()) options.optimizer = Spec<optim::NamedOptimizer>(Config::parse(optimizer, {}));
  Trainer trainer(options);
  trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
  EXPECT_EQ(trainer.current_epoch(), epochs - 1);
  return path;
}

void expect_equal(const State& a, const State& b, const std::string& path) {
  if (a.is_map()) {
    ASSERT_TRUE(b.is_map()) << path;
    ASSERT_EQ(a.as_map().size(), b.as_map().size()) << path;
    for (const auto& [key, value] : a.as_map()) {
      ASSERT_NE(b.find(key), nullptr) << path << "." << key;
      expect_equal(value, b.at(key), path + "." + key);
    }
  } else if (a.is_list()) {
    ASSERT_EQ(a.as_list().size(), b.as_list().size()) << path;
    for (size_t i = 0; i < a.as_list().size(); ++i)
      expect_equal(a.as_list()[i], b.as_list()[i], fmt::format("{}[{}]", path, i));
  } else if (a.is_tensor()) {
    EXPECT_TRUE(at::equal(a.as_tensor(), b.as_tensor())) << path;
  }
}

/// Saved under each mesh, loaded and saved again under each.
void expect_loaded_to_the_bit(const std::vector<StrategyCase>& meshes, const std::string& optimizer = "") {
  for (const StrategyCase& saver : meshes) {
    const std::string saved = saved_by(saver, "", 2, optimizer);
    const State expected = read_checkpoint(saved);
    EXPECT_EQ(expected.at("loops").at("global_step").as_int(), 7);
    for (const StrategyCase& loader : meshes) {
      SCOPED_TRACE(optimizer + ::testing::PrintToString(saver) + ", loaded by " + ::testing::PrintToString(loader));
      const std::string again = saved_by(loader, saved, 3, optimizer);
      ASSERT_NE(again, saved);
      const State loaded = read_checkpoint(again);
      EXPECT_EQ(loaded.at("loops").at("global_step").as_int(), 7);
      expect_equal(expected.at("model"), loaded.at("model"), "model");
      expect_equal(expected.at("optimizers"), loaded.at("optimizers"), "optimizers");
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(MeshCheckpoints, OfAnyMeshAreLoadedToTheBitByAnyOther) {
  expect_loaded_to_the_bit(
      {{"single_device", 1},
       {"mesh", 2, 0, "replicate: 2"},
       {"mesh", 4, 0, "shard: {size: 4, stage: 1}"},
       {"mesh", 2, 0, "shard: {size: 2, stage: 2}"},
       {"mesh", 4, 0, "shard: {size: 4, stage: 3}"},
       {"mesh", 4, 0, "replicate: 2, shard: 2"},
       {"mesh", 2, 0, "pipeline: {size: 2, micro_batches: 2}"},
       {"mesh", 3, 0, "pipeline: {size: 3, schedule: interleaved, micro_batches: 2, chunks_per_rank: 2}"},
       {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, replicate: 2"},
       {"mesh", 4, 0, "pipeline: {size: 2, schedule: zero_bubble, micro_batches: 2}, shard: 2"},
       {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 2}"},
       {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 3}"},
       {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, replicate: 2, shard: 2"},
       {"mesh", 2, 0, "tensor: 2"},
       {"mesh", 4, 0, "replicate: 2, tensor: 2"},
       {"mesh", 4, 0, "shard: {size: 2, stage: 1}, tensor: 2"},
       {"mesh", 4, 0, "shard: {size: 2, stage: 2}, tensor: 2"},
       {"mesh", 8, 0, "replicate: 2, shard: {size: 2, stage: 3}, tensor: 2"},
       {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, tensor: 2"},
       {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 1}, tensor: 2"},
       {"mesh", 8, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 3}, tensor: 2"}});
}

TEST(MeshCheckpoints, OfOptimizersOfWholeTensorsAreLoadedToTheBitByAnyOther) {
  for (const char* optimizer : {"{name: muon, lr: 0.02}", "{name: adafactor, lr: 0.02}", "{name: lamb, lr: 0.02}",
                                "{name: lars, lr: 0.5, momentum: 0.9}"})
    expect_loaded_to_the_bit({{"single_device", 1},
                              {"mesh", 2, 0, "shard: {size: 2, stage: 1}"},
                              {"mesh", 4, 0, "shard: {size: 4, stage: 3}"},
                              {"mesh", 4, 0, "replicate: 2, shard: 2"},
                              {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: 2"},
                              {"mesh", 4, 0, "pipeline: {size: 2, micro_batches: 2}, shard: {size: 2, stage: 3}"}},
                             optimizer);
}

}  // namespace
}  // namespace levin::testing
