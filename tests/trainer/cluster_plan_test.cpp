#include <levin/core/comm/device_mesh.h>
#include <levin/core/options/mesh_strategy.h>
#include <levin/core/planning/cluster_plan.h>
#include <levin/core/planning/memory_planner.h>

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kAmpleMemory = int64_t{1} << 50;
constexpr double kGiB = 0x1p30;

/// Hosts of 8 H100, with 400 Gb/s for each to other hosts.
Cluster h100(int64_t hosts, double flops) {
  return {.hosts = hosts, .devices = 8, .intra_gb_s = 450, .inter_gb_s = 50, .latency_us = 5, .flops = flops};
}

/// A model of so many elements in units that are alike, trained in bf16-mixed by AdamW.
TrainingNeeds transformer_needs(int64_t elements, int64_t units, double flops_per_example) {
  const auto weights = [](int64_t count) {
    return WeightNeeds{
        .elements = count, .bytes = 4 * count, .trainable_elements = count, .trainable_bytes = 4 * count};
  };
  TrainingNeeds needs;
  needs.units.assign(static_cast<size_t>(units), weights(elements / units));
  for (const WeightNeeds& unit : needs.units) needs.weights += unit;
  needs.compute_size = 2;
  needs.optimizer_state = 8 * needs.weights.elements;
  needs.flops_per_example = flops_per_example;
  needs.chain.elements.assign(static_cast<size_t>(units), {.weights = needs.units.front(), .result = {0, 1 << 20}});
  return needs;
}

Cluster parse_cluster(const std::string& yaml) {
  return *parse_options<PlanOptions>(Config::parse("cluster: " + yaml, {.source = "plan.yaml"}), "plan").cluster;
}

TEST(ClusterOptions, EveryKeyIsNeeded) {
  const Cluster cluster =
      parse_cluster("{hosts: 128, devices: 8, intra_gb_s: 450, inter_gb_s: 50, latency_us: 5, flops: 400e12}");
  EXPECT_EQ(cluster.ranks(), 1024);
  EXPECT_EQ(cluster.intra_gb_s, 450);
  EXPECT_EQ(cluster.inter_gb_s, 50);
  EXPECT_DOUBLE_EQ(cluster.latency(), 5e-6);
  EXPECT_EQ(cluster.flops, 400e12);
  EXPECT_EQ(cluster.pass_us, 0);
  EXPECT_EQ(cluster.optimizer_us, 0);
  const Cluster measured = parse_cluster(
      "{hosts: 1, devices: 8, intra_gb_s: 450, inter_gb_s: 50, latency_us: 5, flops: 400e12, pass_us: 900, "
      "optimizer_us: 1500}");
  EXPECT_EQ(measured.pass_us, 900);
  EXPECT_EQ(measured.optimizer_us, 1500);
  EXPECT_THAT(
      [] { parse_cluster("{hosts: 2, devices: 8, intra_gb_s: 450, flops: 1e12}"); },
      ThrowsMessage<ConfigError>(HasSubstr("plan.cluster needs inter_gb_s, latency_us as well; valid: {hosts:")));
  EXPECT_FALSE(
      parse_options<PlanOptions>(Config::parse("cluster: null", {.source = "plan.yaml"}), "plan").cluster.has_value());
}

TEST(ClusterOptions, BadNumbersAreExplained) {
  const auto message = [](const std::string& yaml) {
    try {
      parse_cluster(yaml);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string rest = ", intra_gb_s: 450, inter_gb_s: 50, latency_us: 5, flops: 400e12}";
  EXPECT_THAT(message("{hosts: 0, devices: 8" + rest), HasSubstr("plan.cluster.hosts must be at least 1"));
  EXPECT_THAT(message("{hosts: 1, devices: -8" + rest), HasSubstr("plan.cluster.devices must be at least 1"));
  EXPECT_THAT(message("{hosts: 1, devices: 100000" + rest), HasSubstr("at most 1024"));
  EXPECT_THAT(message("{hosts: 99999999999999999999, devices: 1" + rest), HasSubstr("plan.cluster.hosts must be"));
  EXPECT_THAT(message("{hosts: two, devices: 8" + rest), HasSubstr("plan.cluster.hosts: expected an integer"));
  EXPECT_THAT(message("{host: 2, devices: 8" + rest), HasSubstr("did you mean 'hosts'?"));
  EXPECT_THAT(message("[1, 8]"), HasSubstr("expected a mapping of hosts, devices, intra_gb_s"));
  const std::string first = "{hosts: 2, devices: 8, intra_gb_s: 450, inter_gb_s: ";
  for (const char* bandwidth : {"-50", "0", ".inf", ".nan"})
    EXPECT_THAT(message(first + bandwidth + ", latency_us: 5, flops: 1e12}"),
                HasSubstr("plan.cluster.inter_gb_s must be a finite number above 0; got"))
        << bandwidth;
  EXPECT_THAT(message(first + "50, latency_us: -1, flops: 1e12}"), HasSubstr("at least 0"));
  EXPECT_THAT(message(first + "50, latency_us: 1, flops: 0}"), HasSubstr("plan.cluster.flops must be"));
  for (const char* key : {"pass_us", "optimizer_us"})
    EXPECT_THAT(message(first + "50, latency_us: 1, flops: 1e12, " + key + ": -1}"),
                HasSubstr(std::string("plan.cluster.") + key + " must be a finite number of at least 0; got -1"));
}

TEST(ClusterTimes, RanksLieHostByHost) {
  const Cluster cluster = h100(16, 1);
  const auto spans = [](const RankSpan& span) { return std::pair(span.ranks, span.per_host); };
  using Span = std::pair<int64_t, int64_t>;
  EXPECT_EQ(spans(ranks_along(cluster, 4, 1)), Span(4, 4));
  EXPECT_EQ(spans(ranks_along(cluster, 128, 1)), Span(128, 8));
  EXPECT_EQ(spans(ranks_along(cluster, 12, 1)), Span(12, 4));
  EXPECT_EQ(spans(ranks_along(cluster, 16, 8)), Span(16, 1));
  EXPECT_EQ(spans(ranks_along(cluster, 64, 2)), Span(64, 4));
  EXPECT_EQ(spans(ranks_along(cluster, 4, 32)), Span(4, 1));
  EXPECT_FALSE(ranks_along(cluster, 8, 1).crosses_hosts());
  EXPECT_TRUE(ranks_along(cluster, 16, 1).crosses_hosts());
}

TEST(ClusterTimes, GroupsOfAMeshAreWhereItsCoordinatesSay) {
  std::mt19937 random(5);
  const auto draw = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(random); };
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t pipeline = draw(4);
    const int64_t replicate = draw(6);
    const int64_t shard = draw(6);
    const int64_t ranks = pipeline * replicate * shard;
    Cluster cluster;
    cluster.devices = draw(12);
    if (ranks % cluster.devices != 0) continue;
    cluster.hosts = ranks / cluster.devices;
    const DeviceMesh mesh({{"pipeline", pipeline}, {"replicate", replicate}, {"shard", shard}}, ranks);
    SCOPED_TRACE(mesh.text() + " on hosts of " + std::to_string(cluster.devices));
    const auto expect_place = [&](const char* dimension, int64_t size, int64_t stride) {
      const RankSpan span = ranks_along(cluster, size, stride);
      bool crosses = false;
      int64_t fewest = ranks;
      for (const auto& group : mesh.groups({dimension})) {
        EXPECT_EQ(std::ssize(group), span.ranks);
        std::map<int64_t, int64_t> on_host;
        for (const int64_t rank : group) ++on_host[rank / cluster.devices];
        crosses |= on_host.size() > 1;
        for (const auto& [host, count] : on_host) fewest = std::min(fewest, count);
      }
      EXPECT_EQ(span.crosses_hosts(), crosses) << dimension;
      EXPECT_LE(span.per_host, fewest) << dimension;
      if (cluster.devices % stride == 0) EXPECT_EQ(span.per_host, fewest) << dimension;
    };
    expect_place("shard", shard, 1);
    expect_place("replicate", replicate, shard);
    expect_place("pipeline", pipeline, replicate * shard);
  }
}

TEST(ClusterTimes, CollectivesCostWhatTheAlphaBetaModelSays) {
  const Cluster cluster = h100(16, 1);
  const double alpha = 5e-6;
  // Inside of a host: its links.
  EXPECT_DOUBLE_EQ(all_gather_seconds(cluster, ranks_along(cluster, 8, 1), 8e9), 7 * alpha + 7.0 / 8 * 8e9 / 450e9);
  // Across hosts eight rings go through eight devices of a host: 400 GB/s.
  EXPECT_DOUBLE_EQ(all_gather_seconds(cluster, ranks_along(cluster, 128, 1), 8e9),
                   127 * alpha + 127.0 / 128 * 8e9 / 400e9);
  // One rank on each host: its own device's link.
  EXPECT_DOUBLE_EQ(all_gather_seconds(cluster, ranks_along(cluster, 16, 8), 1e9), 15 * alpha + 15.0 / 16 * 1e9 / 50e9);
  // Large: a ring. Small: trees, whose latency grows with the logarithm.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, ranks_along(cluster, 8, 1), 8e9),
                   2 * all_gather_seconds(cluster, ranks_along(cluster, 8, 1), 8e9));
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, ranks_along(cluster, 128, 1), 8), 2 * 7 * alpha + 2 * 8 / 400e9);
  EXPECT_EQ(all_reduce_seconds(cluster, ranks_along(cluster, 1, 1), 1e9), 0);
  EXPECT_DOUBLE_EQ(message_seconds(cluster, true, 1e9), alpha + 1.0 / 50);
  EXPECT_DOUBLE_EQ(message_seconds(cluster, false, 1e9), alpha + 1.0 / 450);
}

TEST(StepTimes, OneDeviceComputes) {
  TrainingNeeds needs = transformer_needs(1'000'000, 4, 3e9);
  needs.batch_size = 8;
  needs.micro_batches = 5;
  const Cluster cluster{.hosts = 1, .devices = 1, .intra_gb_s = 1, .inter_gb_s = 1, .latency_us = 0, .flops = 1e12};
  const StepTime time = step_time(needs, cluster, {});
  EXPECT_NEAR(time.compute, 5 * 8 * 3e9 / 1e12, 1e-12);
  EXPECT_NEAR(time.total(), time.compute, 1e-12);
  // Recomputing is another forward, which is a third.
  const StepTime recomputed = step_time(needs, cluster, {.checkpoints = true});
  EXPECT_NEAR(recomputed.compute, time.compute * 4 / 3, 1e-12);
}

TEST(StepTimes, APassTakesTimeWhateverItsBatch) {
  TrainingNeeds needs = transformer_needs(1'000'000, 4, 3e9);
  needs.batch_size = 8;
  Cluster cluster{.hosts = 1, .devices = 1, .intra_gb_s = 1, .inter_gb_s = 1, .latency_us = 0, .flops = 1e12};
  cluster.pass_us = 6000;
  const auto compute = [&](const PlanRow& way) { return step_time(needs, cluster, way).compute; };
  EXPECT_NEAR(compute({}), 0.006 + 8 * 3e-3, 1e-12);
  needs.micro_batches = 4;
  EXPECT_NEAR(compute({}), 4 * (0.006 + 8 * 3e-3), 1e-12);
  EXPECT_NEAR(compute({.checkpoints = true}), 4 * 4 / 3.0 * (0.006 + 8 * 3e-3), 1e-12);
  // A pipeline's micro-batches are passes.
  needs.micro_batches = 1;
  cluster.devices = 2;
  cluster.intra_gb_s = 1e9;
  EXPECT_NEAR(compute({.pipeline = 2}), (8 * 0.006 + 8 * 3e-3) / 2, 1e-9);
}

TEST(StepTimes, RanksStepWhatTheyHold) {
  TrainingNeeds needs = transformer_needs(32'000'000, 32, 1e12);
  needs.batch_size = 8;
  Cluster cluster = h100(2, 1e12);
  const auto longer = [&](const PlanRow& way) {
    cluster.optimizer_us = 0;
    const double without = step_time(needs, cluster, way).total();
    cluster.optimizer_us = 1.6e6;
    return step_time(needs, cluster, way).total() - without;
  };
  EXPECT_NEAR(longer({.replicate = 16}), 1.6, 1e-9);
  for (int64_t stage = 1; stage <= 3; ++stage) {
    EXPECT_NEAR(longer({.shard = 16, .stage = stage}), 0.1, 1e-9) << stage;
    EXPECT_NEAR(longer({.replicate = 2, .shard = 8, .stage = stage}), 0.2, 1e-9) << stage;
  }
  EXPECT_NEAR(longer({.pipeline = 8, .replicate = 2}), 0.2, 1e-9);
  // The last stage steps what is in no element.
  needs.chain.outside.trainable_elements = 4'000'000;
  needs.weights.trainable_elements += 4'000'000;
  EXPECT_NEAR(longer({.pipeline = 8, .replicate = 2}), 1.6 * 8 / 36, 1e-9);
}

TEST(StepTimes, TheEndsOfThePipelineComputeWhatIsOutsideOfTheSequential) {
  TrainingNeeds needs = transformer_needs(4'000'000, 4, 12e12);
  needs.batch_size = 8;
  Cluster cluster{.hosts = 1, .devices = 4, .intra_gb_s = 1e9, .inter_gb_s = 1e9, .latency_us = 0, .flops = 1e12};
  const PlanRow way{.pipeline = 4, .schedule = "gpipe"};
  const double even = step_time(needs, cluster, way).total();
  EXPECT_NEAR(even, 12.0 / 4 * (8 + 3), 1e-6);
  // Blocks take a third of the operations, the head the rest: its stage is what all wait for.
  for (ChainNeeds::Element& element : needs.chain.elements) element.flops = 1e9;
  needs.chain.flops_after = 7e9;
  needs.chain.flops_before = 1e9;
  const StepTime time = step_time(needs, cluster, way);
  // A micro-batch takes 8 of 12 s on the last stage, 2 on the first and 1 on each of the others.
  EXPECT_NEAR(time.total(), 8 * 8.0 + 2 + 1 + 1, 1e-6);
  EXPECT_NEAR(time.compute, 8 * 12.0 / 4, 1e-6);
}

TEST(StepTimes, DdpHidesAllBucketsButTheLastWhereThereIsTime) {
  // 400 MiB of gradients in 16 buckets.
  TrainingNeeds needs = transformer_needs(int64_t{100} << 20, 4, 1e12);
  needs.batch_size = 100;
  const Cluster cluster = h100(2, 1e14);
  const StepTime time = step_time(needs, cluster, {.replicate = 16});
  const double bucket = all_reduce_seconds(cluster, ranks_along(cluster, 16, 1), 25 << 20);
  EXPECT_NEAR(time.compute, 1, 1e-9);
  EXPECT_NEAR(time.communication, 16 * bucket, 1e-9);
  EXPECT_NEAR(time.exposed, bucket, 1e-9);
  // Where communication takes longer than backward, all but the first part of backward is hidden.
  needs.batch_size = 1;
  Cluster slow = cluster;
  slow.inter_gb_s = 0.5;
  const StepTime bound = step_time(needs, slow, {.replicate = 16});
  EXPECT_NEAR(bound.exposed, bound.communication - bound.compute * 2 / 3 * 15 / 16, 1e-9);
  // A window reduces once.
  needs.micro_batches = 4;
  EXPECT_NEAR(step_time(needs, slow, {.replicate = 16}).communication, bound.communication, 1e-9);
}

TEST(StepTimes, StagesCommunicateAsThePaperOfZeroSays) {
  // Stage 3 sends half as much again as stages 1 and 2, which send as much as ddp in the type of the gradients.
  TrainingNeeds needs = transformer_needs(int64_t{1} << 30, 32, 1e15);
  Cluster cluster = h100(16, 4e14);
  cluster.latency_us = 0;
  const auto communication = [&](int64_t stage) {
    const PlanRow way =
        stage == 0 ? PlanRow{.replicate = cluster.ranks()} : PlanRow{.shard = cluster.ranks(), .stage = stage};
    return step_time(needs, cluster, way).communication;
  };
  EXPECT_NEAR(communication(1), communication(0) / 2, 1e-9);  // 16 bits
  EXPECT_NEAR(communication(2), communication(1), 1e-9);
  EXPECT_NEAR(communication(3), 1.5 * communication(1), 1e-9);
  needs.micro_batches = 3;
  EXPECT_NEAR(communication(2), 2 * communication(1), 1e-9);
  EXPECT_NEAR(communication(3), 4.5 * communication(1), 1e-9);
}

TEST(StepTimes, GroupsOfAHostKeepGathersInside) {
  TrainingNeeds needs = transformer_needs(int64_t{1} << 30, 32, 1e12);
  Cluster cluster = h100(16, 4e14);
  cluster.inter_gb_s = 5;
  const StepTime whole = step_time(needs, cluster, {.shard = 128, .stage = 3});
  const StepTime group = step_time(needs, cluster, {.replicate = 16, .shard = 8, .stage = 3});
  const double bytes = 2.0 * (int64_t{1} << 30);
  // Gathered twice and reduced once inside of hosts, then an eighth is reduced between hosts.
  EXPECT_NEAR(group.communication,
              3 * 7.0 / 8 * bytes / 450e9 + 32 * 3 * 7 * 5e-6 +
                  32 * all_reduce_seconds(cluster, ranks_along(cluster, 16, 8), bytes / 8 / 32),
              1e-9);
  EXPECT_LT(group.exposed, whole.exposed);
  // It holds an eighth of the model.
  const PlanRow row = plan_row(needs, kAmpleMemory, {.replicate = 16, .shard = 8, .stage = 3});
  EXPECT_EQ(row.optimizer, needs.optimizer_state / 8);
  EXPECT_EQ(row.parameters, needs.weights.bytes / 8);
}

TEST(StepTimes, AMeshCommunicatesOverTheLinksThatItsGroupsCross) {
  TrainingNeeds needs = transformer_needs(int64_t{1} << 30, 32, 1e12);
  needs.compute_size.reset();
  needs.batch_size = 8;
  Cluster cluster = h100(2, 1e14);
  cluster.latency_us = 0;
  needs.chain.elements.assign(32, {.weights = needs.units.front()});
  // Ranks of a stage are those of a host: half of the gradients, within it, twice.
  const double half = 4.0 * (1 << 29);
  const StepTime inside = step_time(needs, cluster, {.pipeline = 2, .shard = 8, .stage = 1});
  EXPECT_NEAR(inside.exposed, 2 * 7.0 / 8 * half / 450e9, 1e-9);
  // What four have scattered is reduced over two of them, on the same host.
  const StepTime groups = step_time(needs, cluster, {.pipeline = 2, .replicate = 2, .shard = 4, .stage = 1});
  EXPECT_NEAR(groups.exposed, (2 * 3.0 / 4 + 2 * 1.0 / 2 / 4) * half / 450e9, 1e-9);
  // All of a stage's gradients are reduced at the end, whatever divides them.
  const StepTime replicas = step_time(needs, cluster, {.pipeline = 2, .replicate = 8});
  EXPECT_NEAR(replicas.exposed, 2 * 7.0 / 8 * half / 450e9, 1e-9);
  // The optimizer steps a part.
  cluster.optimizer_us = 1.6e6;
  EXPECT_NEAR(step_time(needs, cluster, {.pipeline = 2, .shard = 8, .stage = 1}).compute - inside.compute, 0.1, 1e-9);
  // Messages cross hosts where stages do.
  for (ChainNeeds::Element& element : needs.chain.elements) element.result = {.fixed = 0, .per_example = 1e9};
  const auto messages = [&](const PlanRow& way) { return step_time(needs, cluster, way).communication; };
  EXPECT_GT(messages({.pipeline = 2, .replicate = 8}), 16 * 1e9 / 50e9);
  EXPECT_LT(messages({.pipeline = 2, .replicate = 8}) - replicas.communication, 16 * 1.01e9 / 50e9);
}

TEST(StepTimes, BubblesAreThoseOfTheSchedules) {
  TrainingNeeds needs = transformer_needs(32'000'000, 32, 1e12);
  needs.batch_size = 8;
  Cluster cluster{.hosts = 1, .devices = 4, .intra_gb_s = 1e9, .inter_gb_s = 1e9, .latency_us = 0, .flops = 1e12};
  for (const std::string& schedule : pipeline_schedule_names()) {
    const int64_t chunks = schedule == "interleaved" ? 2 : 1;
    const PlanRow way{.pipeline = 4, .schedule = schedule, .chunks = chunks};
    const StepTime time = step_time(needs, cluster, way);
    const PipelineShape shape{.stages = 4, .micro_batches = 8, .chunks_per_rank = chunks};
    EXPECT_NEAR(time.bubble / (time.bubble + time.compute), theoretical_bubble(schedule, shape), 1e-6) << schedule;
    EXPECT_NEAR(time.compute, 8.0 / 4, 1e-6) << schedule;
    EXPECT_NEAR(time.exposed, 0, 1e-6) << schedule;
  }
  // Messages of a slow link show.
  cluster.intra_gb_s = 0.01;
  EXPECT_GT(step_time(needs, cluster, {.pipeline = 4}).exposed, 0.1);
}

TEST(StepTimes, PipelinesSideBySideReduceTheirGradients) {
  TrainingNeeds needs = transformer_needs(int64_t{1} << 30, 32, 1e12);
  needs.batch_size = 8;
  Cluster cluster = h100(2, 1e14);
  cluster.latency_us = 0;
  needs.chain.elements.assign(32, {.weights = needs.units.front()});
  const StepTime time = step_time(needs, cluster, {.pipeline = 8, .replicate = 2});
  // An eighth of the gradients in 32 bits, between two ranks of one host, which have the same stage.
  EXPECT_NEAR(time.exposed, 4.0 * (1 << 27) / 450e9, 1e-9);
  EXPECT_NEAR(time.communication, time.exposed, 1e-9);
}

// torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: Llama 3.1 8B, FSDP2, bf16, sequences of 8192, a batch of 2
// on each H100 with 400 Gb/s between hosts, selective checkpointing. 8 GPUs: 5762 tokens a second and GPU, 82.4 GiB;
// 128 GPUs: 5605 and 67.0 GiB. With torch.compile 6667 and 6514.
TEST(PublishedFigures, Llama8BOn128H100) {
  constexpr int64_t kElements = 8'030'261'248;
  constexpr double kTokens = 8192;
  // Per token 6 for each parameter but those of the embedding, and attention's 12 layers width tokens.
  const double flops = kTokens * (6.0 * (kElements - 128256LL * 4096) + 12.0 * 32 * 4096 * kTokens);
  TrainingNeeds needs = transformer_needs(kElements, 32, flops);
  needs.batch_size = 2;
  const auto tokens_a_second = [&](int64_t hosts, double rate) {
    const StepTime time = step_time(needs, h100(hosts, rate), {.shard = 8 * hosts, .stage = 3});
    return 2 * kTokens / time.total();
  };
  struct Published {
    double on_8;
    double on_128;
  };
  for (const Published& published : {Published{5762, 5605}, Published{6667, 6514}}) {
    // What the devices reach is taken from the run on 8; what 16 times as many do is predicted.
    double rate = published.on_8 * flops / kTokens;
    rate *= published.on_8 / tokens_a_second(1, rate);
    const double predicted = tokens_a_second(16, rate);
    // Predicted 5757 and 6660: 2.7 % and 2.2 % too many. Stragglers and the network's other users are not in the model.
    EXPECT_NEAR(predicted / published.on_128, 1, 0.03) << predicted;
    EXPECT_LT(predicted, published.on_8);
  }
  // 15.4 GiB less on each of 128 than on each of 8; predicted are 12.3. torchtitan has parameters, gradients and two
  // moments in 32 bits, 16 bytes an element; Levin's gradients are in 16 bits, 14 bytes.
  const auto held = [&](int64_t devices) {
    const PlanRow row = plan_row(needs, kAmpleMemory, {.shard = devices, .stage = 3});
    return static_cast<double>(row.parameters + row.gradients + row.optimizer) / kGiB;
  };
  const double less = held(8) - held(128);
  EXPECT_NEAR(less, 14.0 * kElements * (1.0 / 8 - 1.0 / 128) / kGiB, 1e-3);
  EXPECT_NEAR(less * 16 / 14, 15.4, 15.4 * 0.1);
}

// DeepSpeed, ZeRO-3 Offload (March 2021): 10^12 parameters on 512 V100 in 32 DGX-2, 49 of up to 50 TFLOP/s on each GPU,
// "nearly all of the communication" hidden; and half as much again of it as of data parallel training.
TEST(PublishedFigures, ZeroStage3OnATrillionParameters) {
  constexpr int64_t kElements = 1'000'000'000'000;
  const double flops = 1024 * 6.0 * kElements;
  TrainingNeeds needs = transformer_needs(kElements, 128, flops);
  // 16 GPUs share eight links of 100 Gb/s.
  const Cluster dgx2{
      .hosts = 32, .devices = 16, .intra_gb_s = 150, .inter_gb_s = 6.25, .latency_us = 5, .flops = 50e12};
  const PlanRow way{.shard = dgx2.ranks(), .stage = 3, .checkpoints = true};
  const StepTime time = step_time(needs, dgx2, way);
  EXPECT_LT(time.exposed, 0.02 * time.total());
  const double reached = flops * 4 / 3 / time.total() / 1e12;  // what is recomputed counts as well
  // Predicted 49.9, 1.8 % too many: the traffic between host and device is not in the model. The page does not say how
  // large batches were; here a rank has one sequence of 1024 tokens.
  EXPECT_NEAR(reached, 49, 1.0) << reached;
}

TEST(ClusterPlans, TheBestThatFitsIsFirst) {
  TrainingNeeds needs = transformer_needs(8'000'000'000, 32, 4e14);
  needs.batch_size = 2;
  needs.activations.bytes = {.fixed = 0, .per_example = 10 * kGiB};
  needs.kept.bytes = {.fixed = 0, .per_example = kGiB};
  needs.inside.assign(32, {.bytes = {.fixed = 0, .per_example = kGiB / 4}});
  const ClusterPlan plan = plan_cluster(needs, h100(16, 4e14), int64_t{80} << 30);
  ASSERT_NE(plan.best(), nullptr);
  EXPECT_EQ(plan.best(), &plan.rows.front());
  bool fits = true;
  double last = std::numeric_limits<double>::infinity();
  bool has_hybrid = false;
  std::set<std::string> schedules;
  for (const ClusterPlan::Row& row : plan.rows) {
    if (fits && !row.memory.fits) last = std::numeric_limits<double>::infinity();
    EXPECT_TRUE(fits || !row.memory.fits);
    fits = row.memory.fits;
    EXPECT_LE(row.examples_per_second, last);
    last = row.examples_per_second;
    has_hybrid |= row.memory.shard == 8 && row.memory.replicate == 16;
    if (row.memory.pipeline > 1) schedules.insert(row.memory.schedule);
    if (row.memory.strategy() == "ddp") EXPECT_FALSE(row.memory.fits);
  }
  EXPECT_TRUE(has_hybrid);
  EXPECT_EQ(schedules.size(), pipeline_schedule_names().size());
  const std::string table = cluster_table(plan);
  EXPECT_THAT(table, HasSubstr("16 hosts of 8 devices with 81920.0 MiB each, batches of 2 on each"));
  EXPECT_THAT(table, HasSubstr("best that fits: " + strategy_text(plan.best()->memory) + "\n"));
  EXPECT_THAT(table, HasSubstr(" --trainer.devices=8 --trainer.num_nodes=16"));
  EXPECT_THAT(table, HasSubstr("no, batches of 0 would"));
}

TEST(ClusterPlans, TheTableSaysHowToSetEachWay) {
  const auto set = [](const PlanRow& row) { return how_to_set(row, "D"); };
  EXPECT_EQ(set({}), "--trainer.strategy=single_device D");
  EXPECT_EQ(set({.replicate = 8}), "--trainer.strategy=ddp D");
  EXPECT_EQ(set({.shard = 8, .stage = 3, .offload = true}),
            "--trainer.strategy='{name: sharded, stage: 3, offload: true}' D");
  EXPECT_EQ(set({.pipeline = 4}), "--trainer.strategy='{name: pipeline, balance_by: parameters}' D");
  EXPECT_EQ(set({.replicate = 2, .shard = 8, .stage = 3, .checkpoints = true}),
            "--trainer.strategy='{replicate: 2, shard: 8}' D --trainer.activation_checkpointing='[\"*\"]'");
  EXPECT_EQ(set({.replicate = 2, .shard = 8, .stage = 1}),
            "--trainer.strategy='{replicate: 2, shard: {size: 8, stage: 1}}' D");
  EXPECT_EQ(set({.pipeline = 4, .replicate = 2, .schedule = "interleaved", .chunks = 2, .checkpoints = true}),
            "--trainer.strategy='{pipeline: {size: 4, balance_by: parameters, schedule: interleaved, chunks_per_rank: "
            "2, checkpoint: always}, replicate: 2}' D");
}

TEST(ClusterPlans, OneDimensionHasAStrategysNameSeveralAreWrittenAsInYaml) {
  EXPECT_EQ(strategy_text({}), "single_device");
  EXPECT_EQ(strategy_text({.replicate = 8}), "ddp");
  EXPECT_EQ(strategy_text({.shard = 8, .stage = 2, .checkpoints = true}), "sharded, stage 2 + checkpointing");
  EXPECT_EQ(strategy_text({.pipeline = 4, .schedule = "gpipe"}), "pipeline, 4 stages, gpipe");
  EXPECT_EQ(strategy_text({.replicate = 2, .shard = 8, .stage = 3}), "{replicate: 2, shard: 8}");
  EXPECT_EQ(strategy_text({.replicate = 2, .shard = 8, .stage = 2}), "{replicate: 2, shard: {size: 8, stage: 2}}");
  EXPECT_EQ(strategy_text({.pipeline = 2, .replicate = 2, .shard = 2, .stage = 1, .checkpoints = true}),
            "{pipeline: 2, replicate: 2, shard: 2} + checkpointing");
  EXPECT_EQ(strategy_text({.pipeline = 4, .replicate = 2, .schedule = "gpipe"}),
            "{pipeline: {size: 4, schedule: gpipe}, replicate: 2}");
}

TEST(ClusterPlans, WhatIsToBeSetDividesAsTheRowSays) {
  for (const PlanRow& row : meshes(transformer_needs(32'000'000, 32, 1e12), 24, pipeline_schedule_names())) {
    if (row.dimensions() < 2) continue;
    const Config strategy = strategy_of_mesh(strategy_config(row), row.devices());
    SCOPED_TRACE(strategy.to_flow());
    const auto option = [&](const char* name, int64_t unset) {
      const Config* value = strategy.find(name);
      return value == nullptr ? unset : std::stoll(value->text());
    };
    EXPECT_EQ(strategy.find("name")->text(), row.strategy());
    EXPECT_EQ(option("data_parallel", 1), row.pipeline > 1 ? row.batches() : 1);
    EXPECT_EQ(option("shard_group", 1), row.shard);
    if (row.pipeline == 1) EXPECT_EQ(option("stage", 3), row.stage);
  }
}

TEST(ClusterPlans, NothingFitsAndOneDevice) {
  TrainingNeeds needs = transformer_needs(8'000'000'000, 32, 4e14);
  const ClusterPlan none = plan_cluster(needs, h100(1, 4e14), 1 << 20);
  EXPECT_EQ(none.best(), nullptr);
  EXPECT_THAT(cluster_table(none), HasSubstr("nothing fits"));
  Cluster one = h100(1, 4e14);
  one.devices = 1;
  const ClusterPlan single = plan_cluster(needs, one, kAmpleMemory);
  ASSERT_EQ(single.rows.size(), 1);
  EXPECT_THAT(cluster_table(single), HasSubstr("to set it: --trainer.strategy=single_device --trainer.devices=1\n"));
}

TEST(ClusterPlans, SchedulesHoldWhatTheyHold) {
  TrainingNeeds needs = transformer_needs(32'000'000, 32, 1e12);
  for (ChainNeeds::Element& element : needs.chain.elements) element.saved = {.fixed = 0, .per_example = 1000};
  needs.batch_size = 8;
  const auto activations = [&](const std::string& schedule, int64_t chunks) {
    return plan_row(needs, kAmpleMemory, {.pipeline = 4, .schedule = schedule, .chunks = chunks}).activations;
  };
  // gpipe holds all eight micro-batches; 1f1b four, on its first stage.
  const int64_t of_one = 8 * 1000 + (1 << 20);
  EXPECT_EQ(activations("gpipe", 1), 8 * of_one);
  EXPECT_EQ(activations("1f1b", 1), 4 * of_one);
  EXPECT_EQ(activations("zero_bubble", 1), 4 * of_one);
  EXPECT_GT(activations("interleaved", 2), 4 * 8 * 1000);
}

}  // namespace
}  // namespace levin
