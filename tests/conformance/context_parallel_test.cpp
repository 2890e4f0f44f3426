#include "tests/conformance/text_model.h"
#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/metrics/perplexity.h>
#include <levin/core/nn/adapters.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/transformer/language_model.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kStoryTokens = 16;
constexpr int64_t kStoryRows = 40;

struct StoryOptions {
  double dropout = 0;
  bool weighed = true;
  std::string mistake;
  static void describe(Schema<StoryOptions>& schema) {
    schema.field("dropout", &StoryOptions::dropout, "of what blocks add");
    schema.field("weighed", &StoryOptions::weighed, "steps return the number of tokens that count");
    schema.field("mistake", &StoryOptions::mistake, "what the module does wrong");
  }
};

/// Users' code, which knows of parts of sequences where it makes positions alone.
struct PlacesImpl : torch::nn::Module {
  explicit PlacesImpl(std::string mistake) : mistake(std::move(mistake)) {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    places = register_parameter("places", at::randn({kStoryTokens, kWidth}));
  }
  at::Tensor forward(const at::Tensor& text) {
    const int64_t length = mistake == "size" ? text.size(1) : full_sequence_length(text);
    at::Tensor x = tokens(text) + places.slice(0, 0, length);
    if (mistake == "mean") x = x - x.mean(1, /*keepdim=*/true);
    if (mistake == "scale") x = x / x.square().mean().sqrt();
    return x;
  }
  std::string mistake;
  torch::nn::Embedding tokens{nullptr};
  at::Tensor places;
};
LEVIN_UNIT(Places);

class Story : public Module {
 public:
  using Options = StoryOptions;
  explicit Story(const Options& options) : options_(options) {
    nn::TransformerBlockOptions block;
    block.attention = {.width = kWidth,
                       .heads = 4,
                       .key_value_heads = options.mistake == "heads" ? 1 : 4,
                       .causal = true,
                       .bias = true};
    block.mlp = {.hidden = 24};
    block.dropout = options.dropout;
    Sequential net;
    net->push_back(Places(options.mistake));
    if (options.mistake != "no attention") {
      net->push_back(FusedBlock(4));
      net->push_back(nn::TransformerBlock(block).ptr());
    }
    net->push_back(TextHead(at::Tensor()));
    net_ = register_module("net", net);
  }

  StepOutput training_step(const Batch& batch, int64_t) override { return step(batch, "train_loss").first; }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    auto [output, logits] = step(batch, "val_loss");
    log("perplexity", perplexity_.update(logits, batch["next"]));
    return output;
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"logits", net_(batch["tokens"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(
                               parameters(), optim::AdamWOptions{.lr = 3e-3, .weight_decay = 0.1})};
  }

 private:
  std::pair<StepOutput, at::Tensor> step(const Batch& batch, const std::string& name) {
    const at::Tensor logits = net_(batch["tokens"]);
    const at::Tensor loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch["next"].flatten());
    log(name, loss);
    if (!options_.weighed) return {loss, logits};
    return {StepOutput({.loss = loss, .weight = batch["next"].ne(-100).sum()}), logits};
  }

  Options options_;
  metrics::Perplexity perplexity_{metrics::PerplexityOptions{.ignore_index = -100}};
  Sequential net_{nullptr};
};

struct ReaderOptions {
  bool learned = false;
  double dropout = 0;
  bool adapters = false;
  static void describe(Schema<ReaderOptions>& schema) {
    schema.field("adapters", &ReaderOptions::adapters, "these are trained alone");
    schema.field("learned", &ReaderOptions::learned, "positions are learned");
    schema.field("dropout", &ReaderOptions::dropout, "of attention");
  }
};

/// A language model of Levin's, with a layer whose attention reaches back some tokens.
class StoryReader : public Module {
 public:
  using Options = ReaderOptions;
  explicit StoryReader(const Options& options) {
    nn::LanguageModelOptions model{.vocabulary = kVocabulary, .layers = 2};
    model.block.attention = {.width = kWidth,
                             .heads = 4,
                             .key_value_heads = 2,
                             .causal = true,
                             .sliding_window = 5,
                             .dropout = options.dropout,
                             .query_key_norm = nn::QueryKeyNorm::kHead};
    model.block.mlp = {.hidden = 24, .gated = true};
    model.has_sliding_window = {true, false};
    if (options.learned)
      model.learned_positions = kStoryTokens;
    else
      model.rotary = nn::RotaryOptions{.dim = 4};
    model_ = register_module("model", nn::CausalLanguageModel(model));
    if (options.adapters) add_adapters(*this, {.name = "lora", .rank = 2, .targets = {"*.q_proj", "*.down_proj"}});
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor* const positions = batch.find("positions");
    const at::Tensor count = batch["next"].ne(-100).sum();
    at::Tensor loss = model_->loss(batch["tokens"], batch["next"], positions != nullptr ? *positions : at::Tensor());
    loss = at::where(count > 0, loss, at::zeros_like(loss));
    log("train_loss", loss);
    return StepOutput({.loss = loss, .weight = count});
  }
  OptimizerConfigs configure_optimizers() override {
    std::vector<at::Tensor> trained;
    for (const at::Tensor& parameter : parameters())
      if (parameter.requires_grad()) trained.push_back(parameter);
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(trained, optim::AdamWOptions{.lr = 3e-3})};
  }

 private:
  nn::CausalLanguageModel model_{nullptr};
};

/// Targets that count are mostly in the first half, in some batches none in the second.
DataLoader stories(bool masked = true, int64_t length = kStoryTokens) {
  const at::Tensor all = at::arange(kStoryRows * (length + 1), at::kLong).square().add(3).remainder(kVocabulary);
  const at::Tensor rows = all.view({kStoryRows, length + 1});
  at::Tensor next = rows.slice(1, 1).clone();
  if (masked) {
    next.slice(1, 9).fill_(-100);
    next.slice(0, 20, 30).slice(1, 6).fill_(-100);
    next.slice(1, 2, 4).fill_(-100);
  }
  return DataLoader(
      std::make_shared<data::TensorDataset>(Batch{{"tokens", rows.slice(1, 0, length).clone()}, {"next", next}}),
      {.global_batch_size = 4});
}

struct StoryRun {
  StoryOptions options = {};
  std::function<void(TrainerOptions&)> configure = {};
  bool masked = true;
  int64_t length = kStoryTokens;
};

Trained fit_story(const std::string& strategy, int64_t ranks, const StoryRun& run = {}) {
  seed_everything(7);
  const auto module = make<Story>(run.options);
  TrainerOptions trainer_options = quiet(3);
  trainer_options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  trainer_options.devices = ranks;
  trainer_options.precision = Spec<Precision>(Config::parse("64-true", {}));
  trainer_options.gradient_clip_val = 0.5;
  if (run.configure) run.configure(trainer_options);
  Trainer trainer(trainer_options);
  trainer.fit(module, stories(run.masked, run.length), stories(run.masked, run.length));
  Trained trained{.weights = {}, .metrics = trainer.callback_metrics()};
  for (const auto& item : module->named_parameters()) trained.weights.emplace_back(item.key(), item.value().detach());
  return trained;
}

const char* const kContextTwo = "{context: 2, start_method: thread}";
const char* const kContextFour = "{context: 4, start_method: thread}";
const char* const kContextReplicas = "{replicate: 2, context: 2, start_method: thread}";
const char* const kContextShards = "{shard: 2, context: 2, start_method: thread}";
const char* const kContextRing = "{context: {size: 2, method: ring}, start_method: thread}";
const char* const kContextShardsRing = "{shard: 2, context: {size: 2, method: ring}, start_method: thread}";

TEST(ContextParallel, TrainsTransformersAsOneDevice) {
  const Trained expected = fit_story("single_device", 1);
  for (const auto& [strategy, ranks] : {std::pair(kContextTwo, 2), {kContextFour, 4}, {kContextReplicas, 4}}) {
    SCOPED_TRACE(strategy);
    expect_same(fit_story(strategy, ranks), expected, 1e-12);
  }
}

TEST(ContextParallel, TrainsBesideShards) {
  const Trained expected = fit_story("single_device", 1);
  for (const auto& [strategy, ranks] :
       {std::pair(kContextShards, 4),
        {"{shard: {size: 2, stage: 1}, context: 2, start_method: thread}", 4},
        {"{shard: {size: 2, stage: 2}, context: {size: 2, tensors: [tokens, next]}, start_method: thread}", 4},
        {"{replicate: 2, shard: 2, context: 2, start_method: thread}", 8}}) {
    SCOPED_TRACE(strategy);
    expect_same(fit_story(strategy, ranks), expected, 1e-12);
  }
}

TEST(ContextParallel, TrainsInRings) {
  const Trained expected = fit_story("single_device", 1);
  for (const auto& [strategy, ranks] : {std::pair(kContextRing, 2),
                                        {"{context: {size: 4, method: ring}, start_method: thread}", 4},
                                        {"{replicate: 2, context: {size: 2, method: ring}, start_method: thread}", 4},
                                        {kContextShardsRing, 4},
                                        {"{context: {size: 2, method: ring}, start_method: fork, backend: gloo}", 2}}) {
    SCOPED_TRACE(strategy);
    expect_same(fit_story(strategy, ranks), expected, 1e-12);
  }
}

TEST(ContextParallel, TrainsInProcesses) {
  const Trained expected = fit_story("single_device", 1);
  for (const char* backend : {"shared_memory", "gloo"}) {
    SCOPED_TRACE(backend);
    expect_same(fit_story(fmt::format("{{context: 2, start_method: fork, backend: {}}}", backend), 2), expected, 1e-12);
  }
}

TEST(ContextParallel, DrawsTheMasksOfOneDevice) {
  const StoryRun run{.options = {.dropout = 0.2, .weighed = false}, .masked = false};
  expect_same(fit_story(kContextTwo, 2, run), fit_story("single_device", 1, run), 1e-12);
}

TEST(ContextParallel, WorksWithWindowsAndCheckpointedActivations) {
  StoryRun run{.options = {.dropout = 0.1}};
  run.configure = [](TrainerOptions& options) {
    options.accumulate_grad_batches = 3;
    options.activation_checkpointing.units = {"FusedBlock"};
  };
  expect_same(fit_story(kContextTwo, 2, run), fit_story("single_device", 1, run), 1e-12);
  run.options.dropout = 0;  // whose noise differs along shard
  const Trained expected = fit_story("single_device", 1, run);
  for (const char* strategy : {kContextShards, kContextShardsRing}) {
    SCOPED_TRACE(strategy);
    expect_same(fit_story(strategy, 4, run), expected, 1e-12);
  }
}

TEST(ContextParallel, PredictsWholeSequences) {
  const auto predict = [](const std::string& strategy, int64_t ranks, int64_t length) {
    seed_everything(7);
    const auto module = make<Story>(StoryOptions{});
    TrainerOptions options = quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = ranks;
    Trainer trainer(options);
    return trainer.predict(module, stories(/*masked=*/false, length));
  };
  for (const int64_t length : {16, 11}) {  // which cannot be divided
    const auto expected = predict("single_device", 1, length);
    for (const auto& [strategy, ranks] :
         {std::pair(kContextTwo, 2), {kContextRing, 2}, {kContextShards, 4}, {kContextShardsRing, 4}}) {
      SCOPED_TRACE(strategy);
      const auto got = predict(strategy, ranks, length);
      ASSERT_EQ(got.size(), expected.size());
      ASSERT_EQ(got[0].size(), expected[0].size());
      for (size_t i = 0; i < expected[0].size(); ++i) {
        ASSERT_EQ(got[0][i]["logits"].sizes(), expected[0][i]["logits"].sizes());
        EXPECT_TRUE(got[0][i]["logits"].allclose(expected[0][i]["logits"], 1e-5, 1e-5)) << i;
      }
    }
  }
}

Trained fit_reader(const std::string& strategy, int64_t ranks, const ReaderOptions& options, bool packed,
                   const std::function<void(TrainerOptions&)>& configure = {}) {
  seed_everything(7);
  const auto module = make<StoryReader>(options);
  TrainerOptions trainer_options = quiet(3);
  trainer_options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  trainer_options.devices = ranks;
  trainer_options.precision = Spec<Precision>(Config::parse("64-true", {}));
  if (configure) configure(trainer_options);
  Trainer trainer(trainer_options);
  DataLoader loader = stories();
  if (packed) {  // two documents in a row, and padding
    at::Tensor positions = at::arange(kStoryTokens, at::kLong).expand({kStoryRows, -1}).clone();
    positions.slice(1, 7).sub_(7);
    positions.slice(0, 0, 10).slice(1, 14).fill_(-1);
    Batch all;
    const at::Tensor text = at::arange(kStoryRows * kStoryTokens, at::kLong).square().add(3).remainder(kVocabulary);
    all.set("tokens", text.view({kStoryRows, kStoryTokens}));
    all.set("next",
            (text + 5).remainder(kVocabulary).view({kStoryRows, kStoryTokens}).masked_fill(positions < 0, -100));
    all.set("positions", positions);
    loader = DataLoader(std::make_shared<data::TensorDataset>(all), {.global_batch_size = 4});
  }
  trainer.fit(module, loader);
  Trained trained{.weights = {}, .metrics = trainer.callback_metrics()};
  for (const auto& item : module->named_parameters()) trained.weights.emplace_back(item.key(), item.value().detach());
  return trained;
}

TEST(ContextParallel, TrainsLanguageModelsAsOneDevice) {
  for (const bool packed : {false, true})
    for (const double dropout : {0.0, 0.1}) {
      SCOPED_TRACE(fmt::format("packed {}, dropout {}", packed, dropout));
      const ReaderOptions options{.learned = packed == (dropout > 0), .dropout = dropout};
      const Trained expected = fit_reader("single_device", 1, options, packed);
      expect_same(fit_reader(kContextTwo, 2, options, packed), expected, 1e-12);
      // A ring has no dropout of attention, and noise differs along shard.
      if (dropout == 0) expect_same(fit_reader(kContextShardsRing, 4, options, packed), expected, 1e-12);
    }
}

TEST(ContextParallel, TrainsAdaptersAsOneDevice) {
  const ReaderOptions options{.adapters = true};
  const Trained got = fit_reader(kContextTwo, 2, options, false);
  expect_same(got, fit_reader("single_device", 1, options, false), 1e-12);
  EXPECT_EQ(std::ranges::count_if(got.weights,
                                  [](const auto& weight) { return weight.first.find("lora") != std::string::npos; }),
            8);
}

/// Frozen weights that a second forward has read are gathered still when the unit's last gradient comes.
TEST(CheckpointedAdapters, TrainAsPlainOnes) {
  const auto with = [](const std::string& checkpointing, const std::string& precision) {
    return [=](TrainerOptions& options) {
      options.precision = Spec<Precision>(Config::parse(precision, {}));
      if (!checkpointing.empty())
        options.activation_checkpointing = ConfigCodec<ActivationCheckpointingOptions>::parse(
            Config::parse(checkpointing, {}), "activation_checkpointing");
    };
  };
  const ReaderOptions options{.adapters = true};
  for (const char* precision : {"64-true", "32-true", "bf16-mixed"})
    for (const auto& [strategy, ranks] : {std::pair("single_device", 1),
                                          {"{shard: {size: 2, stage: 2}, start_method: thread}", 2},
                                          {"{shard: {size: 2, stage: 3}, start_method: thread}", 2},
                                          {kContextTwo, 2},
                                          {kContextRing, 2}}) {
      const Trained expected = fit_reader(strategy, ranks, options, true, with("", precision));
      for (const char* checkpointing :
           {"[DecoderLayer]", "{units: [DecoderLayer], keep: [linear, 'levin::rms_norm']}",
            "{units: [DecoderLayer], keep: [_to_copy, linear]}", "{units: [DecoderLayer], budget: 0.75}",
            "{units: [DecoderLayer], budget: 0.95}"}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", strategy, checkpointing, precision));
        const Trained got = fit_reader(strategy, ranks, options, true, with(checkpointing, precision));
        for (size_t i = 0; i < expected.weights.size(); ++i)
          EXPECT_TRUE(got.weights[i].second.equal(expected.weights[i].second)) << expected.weights[i].first;
      }
    }
}

TEST(ContextParallel, TrainsUnderAutocast) {
  const auto in = [](const char* precision) {
    StoryRun run;
    run.configure = [=](TrainerOptions& options) {
      options.precision = Spec<Precision>(Config::parse(precision, {}));
      options.max_steps = 5;  // after which roundings have not grown yet
    };
    return run;
  };
  const auto distance = [](const Trained& a, const Trained& b) {
    double most = 0;
    for (size_t i = 0; i < a.weights.size(); ++i)
      if (const std::string& name = a.weights[i].first; !name.ends_with("k_proj.bias") && !name.ends_with("qkv.bias"))
        most = std::max(most, (a.weights[i].second - b.weights[i].second).abs().mean().item<double>());
    return most;
  };
  const Trained narrow = fit_story("single_device", 1, in("bf16-mixed"));
  const Trained cut = fit_story(kContextTwo, 2, in("bf16-mixed"));
  EXPECT_LT(distance(cut, narrow), 2 * distance(narrow, fit_story("single_device", 1, in("32"))));
  EXPECT_NEAR(cut.metrics.at("train_loss"), narrow.metrics.at("train_loss"), 0.02);
}

TEST(ContextParallel, GoesOnToTheBitInsideOfAWindow) {
  const auto run = [](const char* strategy, double dropout, int64_t steps, const std::string& ckpt,
                      const std::string& saved) {
    seed_everything(7);
    const auto module = make<Story>(StoryOptions{.dropout = dropout});
    TrainerOptions options = quiet(2);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = 4;
    options.accumulate_grad_batches = 3;
    options.callbacks = {make<LambdaCallback>(
        {.on_train_batch_end = [=](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
          if (!saved.empty() && trainer.total_batches() + 1 == steps) trainer.save_checkpoint(saved);
        }})};
    Trainer trainer(options);
    trainer.fit(module, stories(), stories(), ckpt);
    Trained trained{.weights = {}, .metrics = trainer.callback_metrics()};
    for (const auto& item : module->named_parameters()) trained.weights.emplace_back(item.key(), item.value().detach());
    return trained;
  };
  for (const auto& [strategy, dropout] :
       {std::pair(kContextReplicas, 0.1), {kContextShards, 0.1}, {kContextShardsRing, 0.0}}) {
    SCOPED_TRACE(strategy);
    const std::string saved = fresh_folder("context") + "/inside";
    const Trained expected = run(strategy, dropout, 4, "", saved);
    const Trained resumed = run(strategy, dropout, 0, saved, "");
    for (size_t i = 0; i < expected.weights.size(); ++i)
      EXPECT_TRUE(resumed.weights[i].second.equal(expected.weights[i].second)) << expected.weights[i].first;
    EXPECT_EQ(resumed.metrics, expected.metrics);
  }
}

std::string story_failure(const std::string& strategy, int64_t ranks, const StoryRun& run = {}) {
  try {
    fit_story(strategy, ranks, run);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ContextParallel, SaysWhatItCannotDo) {
  EXPECT_THAT(story_failure(kContextTwo, 2, {.options = {.mistake = "size"}}),
              HasSubstr("that was made from the size of this part; valid: sizes of all positions; hint: "
                        "levin::full_sequence_length(x) instead of the size of the part"));
  for (const char* mistake : {"mean", "scale"})
    EXPECT_THAT(story_failure(kContextTwo, 2, {.options = {.mistake = mistake}}),
                HasSubstr("in the unit 'net.0', aten::mean would mix the 16 positions of a sequence of which this rank "
                          "has 8"));
  EXPECT_THAT(story_failure(kContextTwo, 2, {.options = {.mistake = "heads"}}),
              HasSubstr("attention with 1 heads of keys cannot be divided over 2 ranks; valid: a multiple of 2 (the "
                        "next is 2)"));
  EXPECT_THAT(
      story_failure(kContextTwo, 2, {.options = {.mistake = "no attention"}}),
      HasSubstr("no scaled_dot_product_attention and no full_sequence has run over the sequences that ranks divide"));
  EXPECT_THAT(story_failure(kContextFour, 4, {.length = 14}),
              HasSubstr("sequences of 14 positions, which cannot be divided over 4 ranks; valid: a multiple of 4, at "
                        "least 8, such as 12 or 16"));
  EXPECT_THAT(story_failure("{context: {size: 4, method: ring}, start_method: thread}", 4, {.length = 12}),
              HasSubstr("sequences of 12 positions, which cannot be divided over 4 ranks; valid: a multiple of 8, at "
                        "least 8, such as 8 or 16"));
  EXPECT_THAT(story_failure("{context: {size: 2, tensors: [text]}, start_method: thread}", 2),
              HasSubstr("strategy.context.tensors: 'text' is not in the batch; valid: tokens [4, 16], next [4, 16]"));
  EXPECT_THAT(story_failure("{context: {size: 2, dimension: 2}, start_method: thread}", 2),
              HasSubstr("no tensor of the batch has a dimension 2 with positions; got tokens [4, 16], next [4, 16]"));
  EXPECT_THAT(story_failure("{context: 2, tensor: 2, start_method: thread}", 4),
              HasSubstr("context 2 does not work beside tensor 2 yet; valid beside context: replicate and shard"));
}

}  // namespace
}  // namespace levin::testing
