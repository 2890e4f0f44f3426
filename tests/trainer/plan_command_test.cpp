#include "tests/support/tiny.h"

#include <levin/core/cli/cli.h>
#include <levin/core/data/combined_data.h>
#include <levin/core/data/data_module.h>

#include <gmock/gmock-matchers.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

namespace levin::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct PointsOptions {
  int64_t examples = 40;
  int64_t batch_size = 8;
  static void describe(Schema<PointsOptions>& schema) {
    schema.field("examples", &PointsOptions::examples, "examples of the training data").at_least(0);
    schema.field("batch_size", &PointsOptions::batch_size, "examples in a batch").at_least(1);
  }
};

class Points : public DataModule {
 public:
  using Options = PointsOptions;
  explicit Points(const Options& options) : options_(options) {}
  DataLoader train_dataloader() override {
    if (options_.examples == 0) return {};
    return DataLoader(tiny_dataset(options_.examples), {.batch_size = options_.batch_size});
  }

 private:
  Options options_;
};

/// Learns from a batch of each of two parts.
class TwoParts : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    return TinyModule::training_step(batch.part("a"), batch_idx).loss() +
           TinyModule::training_step(batch.part("b"), batch_idx).loss();
  }
};

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

class PlanCommand : public ::testing::Test {
 protected:
  /// Runs the program as from a shell, in this test's folder.
  Outcome run(std::vector<std::string> words) {
    words.emplace_back("--seed=42");
    words.emplace_back("--trainer.accelerator=cpu");
    words.push_back("--trainer.default_root_dir=" + root_);
    words.insert(words.begin(), "program");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    Cli cli;
    cli.modules.add<TinyModule>("tiny", "two layers");
    cli.modules.add<TwoParts>("two_parts", "the loss of two batches");
    cli.data.add<Points>("points", "points and their sums");
    cli.data.add<data::CombinedData>("combined", "several of them");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = cli.run(static_cast<int>(argv.size()), argv.data());
    outcome.out = ::testing::internal::GetCapturedStdout();
    outcome.err = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  const std::string root_ = fresh_folder("plan");
};

TEST_F(PlanCommand, PlansForEachNumberOfDevicesAndWritesNothing) {
  // 4 weights, a bias and a weight for each of 65536 hidden features: 1.5 MiB of parameters. Backward has 2 MiB for the
  // gradient of what dropout gave and 2 for that of what it got; alone, before most of the parameters' gradients.
  const Outcome plan = run({"plan", "--model.width=65536", "--plan.devices=1,4", "--plan.memory=1GiB"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("393217 parameters, 393217 of them trained, in 32-true; measured on cpu with batches "
                                  "of 8 and 4\n"));
  EXPECT_THAT(plan.out, HasSubstr("1 device with 1024.0 MiB each, batches of 8 on each"));
  EXPECT_THAT(
      plan.out,
      ContainsRegex(
          "\n  single_device +1\\.5 +1\\.5 +3\\.0 +2\\.0 +2\\.7 +0\\.0 +10\\.8 +0\\.0 +0\\.0 +0\\.0 +0\\.0 +yes +"));
  EXPECT_THAT(plan.out, HasSubstr("4 devices with 1024.0 MiB each"));
  EXPECT_THAT(
      plan.out,
      ContainsRegex("\n  ddp +1\\.5 +1\\.5 +3\\.0 +2\\.0 +4\\.0 +0\\.0 +12\\.0 +2\\.3 +0\\.0 +2\\.3 +0\\.0 +yes +"));
  EXPECT_THAT(plan.out, ContainsRegex("\n  sharded, stage 1 +1\\.5 +1\\.5 +0\\.8 +2\\.0 "));
  EXPECT_THAT(plan.out, HasSubstr("to set it: --trainer.strategy=ddp --trainer.devices=4"));
  EXPECT_THAT(plan.out, Not(HasSubstr("checkpointing")));  // the module has no units
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(PlanCommand, PlansOnOneDeviceWhateverTheConfigurationSays) {
  const std::string file = root_ + "/plan.yaml";
  std::ofstream(file) << "trainer:\n  strategy: {name: sharded, stage: 2}\n  devices: 4\n  num_nodes: 2\n"
                         "  accumulate_grad_batches: 4\n  precision: bf16-mixed\n  sync_batchnorm: true\n"
                         "plan: {devices: [2], memory: 512MiB}\n";
  const Outcome plan = run({"plan", "--config", file, "--plan.memory=256MiB"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("in bf16-mixed"));
  EXPECT_THAT(plan.out, HasSubstr("2 devices with 256.0 MiB each"));
  EXPECT_THAT(plan.out, Not(HasSubstr("8 devices")));
  // The section is no hindrance for other commands, nor in their way where it is not there.
  EXPECT_THAT(run({"fit", "--config", file, "--print_config"}).out, HasSubstr("plan:"));
  EXPECT_THAT(run({"fit", "--print_config"}).out, Not(HasSubstr("plan:")));
}

TEST_F(PlanCommand, PlansForTheMemoryOfThisMachineByDefault) {
  const Outcome plan = run({"plan", "--plan.devices=2"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, ContainsRegex("2 devices with [1-9][0-9]+\\.[0-9] MiB each"));
  EXPECT_THAT(plan.out, HasSubstr("cheapest that fits: ddp"));
}

TEST_F(PlanCommand, FewerExamplesThanABatchAreEnough) {
  const Outcome plan = run({"plan", "--data.examples=3", "--plan.devices=1"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("measured on cpu with batches of 3 and 1"));
  EXPECT_THAT(plan.out, HasSubstr("batches of 8 on each"));
}

TEST_F(PlanCommand, CombinedDataArePlannedWithAllParts) {
  const std::vector<std::string> words = {"plan", "--model.name=two_parts", "--model.width=65536", "--plan.devices=1",
                                          "--plan.memory=1GiB"};
  const auto with_parts = [&](const std::string& parts, const std::string& mode = "min_size") {
    std::vector<std::string> all = words;
    all.push_back("--data={name: combined, mode: " + mode + ", parts: " + parts + "}");
    return run(all);
  };
  const Outcome plan = with_parts("{a: {name: points}, b: {name: points, batch_size: 24}}");
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("measured on cpu with batches of 32 and 16\n"));
  // The hidden layer of each of the 32 examples: 8 MiB. One loader with batches of 32 needs as much.
  EXPECT_THAT(plan.out, ContainsRegex("\n  single_device +1\\.5 +1\\.5 +3\\.0 +8\\.0 "));
  EXPECT_THAT(
      run({"plan", "--model.width=65536", "--plan.devices=1", "--plan.memory=1GiB", "--data.batch_size=32"}).out,
      ContainsRegex("\n  single_device +1\\.5 +1\\.5 +3\\.0 +8\\.0 "));
  const Outcome short_part = with_parts("{a: {name: points}, b: {name: points, examples: 3}}");
  ASSERT_EQ(short_part.status, 0) << short_part.err;
  EXPECT_THAT(short_part.out, HasSubstr("measured on cpu with batches of 4 and 2"));
  EXPECT_THAT(short_part.out, HasSubstr("batches of 16 on each"));
  const Outcome sequential = with_parts("{a: {name: points}, b: {name: points}}", "sequential");
  EXPECT_EQ(sequential.status, 1);
  EXPECT_THAT(sequential.err, HasSubstr("of the mode sequential has batches of one part at a time"));
}

TEST_F(PlanCommand, BadInputIsExplained) {
  EXPECT_THAT(run({"plan", "--plan.devices=0"}).err, HasSubstr("plan.devices must be at least 1; got 0"));
  EXPECT_THAT(run({"plan", "--plan.devices=2,many"}).err, HasSubstr("plan.devices: expected an integer"));
  EXPECT_THAT(run({"plan", "--plan.devices=[]"}).err, HasSubstr("plan.devices: expected"));
  for (const char* memory : {"plenty", "8 apples", "-1GiB", "0", "1e40GiB", "GiB"})
    EXPECT_THAT(run({"plan", std::string("--plan.memory=") + memory}).err,
                HasSubstr("plan.memory: expected a size such as 80GiB"))
        << memory;
  EXPECT_THAT(run({"plan", "--plan.device=2"}).err, HasSubstr("did you mean 'devices'?"));
  const Outcome no_data = run({"plan", "--data.examples=0"});
  EXPECT_EQ(no_data.status, 1);
  EXPECT_THAT(no_data.err, HasSubstr("fit needs data; got none"));
  EXPECT_EQ(run({"plan", "--plan.devices=0"}).status, 2);
}

TEST_F(PlanCommand, PlansForACluster) {
  const Outcome plan =
      run({"plan", "--model.width=65536", "--plan.memory=1GiB",
           "--plan.cluster={hosts: 2, devices: 4, intra_gb_s: 100, inter_gb_s: 10, latency_us: 5, flops: 1e12}"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("2 hosts of 4 devices with 1024.0 MiB each, batches of 8 on each"));
  // Matrix products of 8 examples with 4 x 65536 and 65536 x 1 weights; the input needs no gradient.
  EXPECT_THAT(plan.out, ContainsRegex("[0-9.e+]+ floating point operations for each example, forward and backward\n"));
  EXPECT_THAT(plan.out,
              ContainsRegex("\n  ddp +[0-9.]+ +[0-9.]+ +0\\.0[0-9] +[0-9.]+ +[0-9.]+ +0\\.00 +12\\.0  yes\n"));
  EXPECT_THAT(plan.out, ContainsRegex("\n  .replicate: [24], shard: "));
  EXPECT_THAT(plan.out, HasSubstr(" --trainer.devices=4 --trainer.num_nodes=2"));
  // One key after the other, as with any section.
  EXPECT_THAT(run({"plan", "--plan.cluster.hosts=2", "--plan.cluster.devices=4"}).err,
              HasSubstr("plan.cluster needs intra_gb_s, inter_gb_s, latency_us, flops as well"));
  const Outcome zero =
      run({"plan", "--plan.cluster={hosts: 0, devices: 4, intra_gb_s: 1, inter_gb_s: 1, latency_us: 5, flops: 1}"});
  EXPECT_EQ(zero.status, 2);
  EXPECT_THAT(zero.err, HasSubstr("plan.cluster.hosts must be at least 1"));
}

TEST_F(PlanCommand, WritesJsonForPrograms) {
  const std::string file = root_ + "/plan.json";
  const Outcome plan = run({"plan", "--model.width=65536", "--plan.devices=1,4", "--plan.memory=1GiB", "-o", file});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("cheapest that fits: ddp"));  // the table as well
  const auto json = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(json["parameters"], 393217);
  EXPECT_EQ(json["cluster"], nullptr);
  ASSERT_EQ(json["plans"].size(), 2);
  const auto& of_four = json["plans"][1];
  EXPECT_EQ(of_four["devices"], 4);
  EXPECT_EQ(of_four["memory"], 1 << 30);
  EXPECT_EQ(of_four["batch_size"], 8);
  EXPECT_EQ(of_four["cheapest"], 0);
  const auto& ddp = of_four["rows"][0];
  EXPECT_EQ(ddp["text"], "ddp");
  EXPECT_EQ(ddp["stage"], nullptr);
  EXPECT_EQ(ddp["bytes"]["parameters"], 4 * 393217);
  EXPECT_EQ(ddp["bytes"]["sent"], 2 * 3 * 393217);
  EXPECT_EQ(ddp["options"], "--trainer.strategy=ddp --trainer.devices=4");
  EXPECT_EQ(of_four["rows"][3]["strategy"], "sharded");
  EXPECT_EQ(of_four["rows"][3]["stage"], 3);

  const Outcome of_cluster =
      run({"plan", "--plan.output=" + file,
           "--plan.cluster={hosts: 2, devices: 4, intra_gb_s: 100, inter_gb_s: 10, latency_us: 5, flops: 1e12}"});
  ASSERT_EQ(of_cluster.status, 0) << of_cluster.err;
  const auto cluster = nlohmann::json::parse(std::ifstream(file))["cluster"];
  EXPECT_EQ(cluster["inter_gb_s"], 10);
  EXPECT_EQ(cluster["best"], 0);
  std::set<std::pair<int, int>> groups;
  for (const auto& row : cluster["rows"]) {
    EXPECT_NEAR(row["seconds"]["step"].get<double>(),
                row["seconds"]["compute"].get<double>() + row["seconds"]["not_hidden"].get<double>() +
                    row["seconds"]["bubble"].get<double>(),
                1e-12);
    const auto& mesh = row["mesh"];
    EXPECT_EQ(mesh["pipeline"].get<int>() * mesh["replicate"].get<int>() * mesh["shard"].get<int>(), 8);
    EXPECT_EQ(row["bytes"]["sent"], row["bytes"]["sent_pipeline"].get<int64_t>() +
                                        row["bytes"]["sent_replicate"].get<int64_t>() +
                                        row["bytes"]["sent_shard"].get<int64_t>());
    if (row["shard_group"].is_number()) groups.emplace(row["stage"], row["shard_group"]);
  }
  EXPECT_THAT(groups, ::testing::ElementsAre(std::pair(1, 2), std::pair(1, 4), std::pair(2, 2), std::pair(2, 4),
                                             std::pair(3, 2), std::pair(3, 4)));
  const Outcome nowhere = run({"plan", "--plan.devices=1", "-o", root_ + "/no/folder/plan.json"});
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("/no/folder/plan.json"));
}

TEST_F(PlanCommand, AutoWithAMemoryLimitTrainsWithWhatFits) {
  // 1.5 MiB of parameters: 12 MiB with gradients, Adam's state, 2 MiB of activations and 4 of their gradients; 10.5
  // where two ranks divide the state.
  const auto fit = [&](const std::string& memory, const std::string& more = "") {
    return run({"fit", "--model.width=65536", "--trainer.devices=2", "--trainer.max_steps=3",
                "--trainer.strategy={name: auto, memory: " + memory + ", start_method: thread" + more + "}"});
  };
  const Outcome roomy = fit("1GiB");
  ASSERT_EQ(roomy.status, 0) << roomy.err;
  EXPECT_THAT(roomy.err, HasSubstr("strategy auto: ddp for 2 devices of 1024.0 MiB each, batches of 8 on each"));
  const Outcome tight = fit("11MiB");
  ASSERT_EQ(tight.status, 0) << tight.err;
  EXPECT_THAT(tight.err, HasSubstr("strategy auto: sharded, stage 1 for 2 devices of 11.0 MiB each"));
  EXPECT_THAT(tight.err, ContainsRegex("\n  ddp +12\\.0 +1\\.5  does not fit: 1\\.0 MiB too much\n"));
  const Outcome none = fit("3MiB");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err,
              HasSubstr("trainer.strategy.memory: nothing fits; got 3.0 MiB on each of 2 devices; the least is"));
  const Outcome wrong =
      fit("1GiB", ", cluster: {hosts: 2, devices: 2, intra_gb_s: 1, inter_gb_s: 1, latency_us: 1, flops: 1e9}");
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("got 4 ranks = 2 hosts x 2 devices, and 2 ranks in the run"));
  EXPECT_THAT(run({"fit", "--print_config", "--trainer.strategy=auto", "--trainer.strategy.memory=24GiB"}).out,
              ContainsRegex("strategy:[^\n]*\n    name: auto[^\n]*\n    memory: 24GiB"));
  // What the plan says is measured with what would be chosen.
  EXPECT_THAT(run({"plan", "--model.width=64", "--trainer.devices=2", "--plan.measure_steps=3",
                   "--trainer.strategy={name: auto, memory: 1GiB, start_method: thread}"})
                  .out,
              ContainsRegex("on a rank of 2.*; predicted: "));
}

TEST_F(PlanCommand, AChoiceTrainsAsTheStrategyDoesByItsName) {
  const auto weights = [&](const std::string& strategy, const std::string& folder) {
    const Outcome fit = run({"fit", "--model.width=64", "--trainer.devices=2", "--trainer.max_steps=3",
                             "--trainer.strategy=" + strategy, "--trainer.run_dir=" + root_ + "/" + folder,
                             "--trainer.callbacks=[{model_checkpoint: {save_last: true}}]"});
    EXPECT_EQ(fit.status, 0) << fit.err;
    std::ifstream file(root_ + "/" + folder + "/checkpoints/last/model.safetensors");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string by_name = weights("{name: ddp, start_method: thread}", "named");
  EXPECT_FALSE(by_name.empty());
  EXPECT_TRUE(by_name == weights("{name: auto, memory: 1GiB, start_method: thread}", "chosen"));
}

TEST_F(PlanCommand, TheHelpHasItsOptions) {
  for (const auto& words : {std::vector<std::string>{"--help", "plan"}, {"plan", "--help"}}) {
    const Outcome help = run(words);
    EXPECT_THAT(help.out, HasSubstr("--plan.devices"));
    EXPECT_THAT(help.out, HasSubstr("--plan.memory"));
    EXPECT_THAT(help.out, HasSubstr("--plan.cluster"));
  }
}

TEST_F(PlanCommand, MeasuresTheConfiguredTraining) {
  const auto measured = [&](const std::string& strategy, const std::string& devices) {
    return run({"plan", "--model.width=64", "--trainer.strategy=" + strategy, "--trainer.devices=" + devices,
                "--plan.measure_steps=3"})
        .out;
  };
  EXPECT_THAT(measured("single_device", "1"), ContainsRegex("measured: at most [0-9.]+ MiB on a rank of 1, without "
                                                            "batches; predicted: [0-9.]+ MiB"));
  EXPECT_THAT(measured("{name: sharded_threads, stage: 2}", "2"), ContainsRegex("on a rank of 2.*; predicted: "));
  EXPECT_THAT(measured("{replicate: 2, shard: 2, start_method: thread}", "4"),
              ContainsRegex("on a rank of 4.*; predicted: "));
  EXPECT_THAT(run({"plan", "--plan.measure_steps=1"}).err, HasSubstr("0, or at least 2"));
}

}  // namespace
}  // namespace levin::testing
