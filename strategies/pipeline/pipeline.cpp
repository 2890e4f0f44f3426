#include <levin/strategies/pipeline/pipeline.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/outermost_sequentials.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/weight_behaviour.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/strategies/pipeline/chain_measurement.h>
#include <levin/strategies/pipeline/pipeline_engine.h>
#include <levin/strategies/pipeline/pipeline_partition.h>
#include <levin/strategies/pipeline/pipeline_trace.h>
#include <levin/strategies/pipeline/stage_ring.h>
#include <levin/strategies/ranks/divisible_optimizer.h>
#include <levin/strategies/ranks/model_agreement.h>
#include <levin/strategies/ranks/window_reducer.h>
#include <levin/strategies/replicas/split_batch.h>
#include <levin/strategies/sharded/sharded_model.h>
#include <levin/strategies/tensor/tensor_model.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

namespace levin {
namespace {

constexpr int64_t kRepetitions = 3;

BalanceBy balance_by(const std::string& name) {
  if (name == "parameters") return BalanceBy::kParameters;
  if (name == "memory") return BalanceBy::kMemory;
  return BalanceBy::kTime;
}

std::string numbers_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += fmt::format("{}{}", text.empty() ? "" : " ", number);
  return text;
}

std::vector<int64_t> numbers_from(const std::string& text) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    numbers.push_back(std::stoll(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers;
}

/// Parameters and buffers of a module and what it consists of, by TensorImpl.
void add_tensors(torch::nn::Module& module, const torch::nn::Module* without, std::unordered_set<const void*>& found) {
  if (&module == without) return;
  for (const auto& tensor : module.parameters(/*recurse=*/false)) found.insert(tensor.unsafeGetTensorImpl());
  for (const auto& tensor : module.buffers(/*recurse=*/false)) found.insert(tensor.unsafeGetTensorImpl());
  for (const auto& child : module.children()) add_tensors(*child, without, found);
}

}  // namespace

// ---- Options

PipelineBalance ConfigCodec<PipelineBalance>::parse(const Config& node, const std::string& path) {
  if (node.is_scalar() && node.text() == "auto") return {};
  if (!node.is_sequence()) throw_wrong_type(node, path, type_name());
  return {ConfigCodec<std::vector<int64_t>>::parse(node, path)};
}

Config ConfigCodec<PipelineBalance>::dump(const PipelineBalance& value) {
  if (value.elements.empty()) return ConfigCodec<std::string>::dump("auto");
  return ConfigCodec<std::vector<int64_t>>::dump(value.elements);
}

void PipelineOptions::describe(Schema<PipelineOptions>& schema) {
  using O = PipelineOptions;
  schema.field("balance", &O::balance, "members of the sequential for each stage; auto: automatic partition");
  schema.field("balance_by", &O::balance_by, "quantity that balance: auto equalises across stages")
      .one_of({"time", "parameters", "memory"});
  schema.field("schedule", &O::schedule, "the order in which a rank runs forward and backward of micro-batches")
      .one_of({"gpipe", "1f1b", "interleaved", "zero_bubble"});
  schema.field("micro_batches", &O::micro_batches, "micro-batches of a rank's batch; at most its examples")
      .at_least(1)
      .at_most(100'000);
  schema
      .field("chunks_per_rank", &O::chunks_per_rank,
             "chunks of the model on each rank, for schedule: interleaved; 0: 2 for it, 1 for others")
      .at_least(0)
      .at_most(1000);
  schema.field("checkpoint", &O::checkpoint, "micro-batches whose activations are recomputed in backward")
      .one_of({"always", "except_last", "never"});
  schema.field("data_parallel", &O::data_parallel, "number of data-parallel replicas of the pipeline")
      .at_least(1)
      .at_most(100'000);
  schema.field("shard_optimizer", &O::shard_optimizer,
               "divide the optimizer's state over data-parallel replicas, as stage 1 of sharded");
  schema
      .field("shard_group", &O::shard_group,
             "shard_optimizer: data-parallel replicas that divide one copy of the state: all, or a number")
      .require("all or a number of pipelines", [](const std::string& value) {
        return value == "all" ||
               (!value.empty() && value.size() < 10 && value != "0" &&
                std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; }) && std::stoll(value) > 0);
      });
  schema
      .field("shard_stage", &O::shard_stage,
             "shard_optimizer: what is divided; 1: optimizer's state; 2: gradients too; 3: parameters too")
      .at_least(1)
      .at_most(3);
  schema.field("shard_prefetch", &O::shard_prefetch, "shard_stage 3: units that are gathered before they are needed")
      .at_least(0);
  schema.field("shard_bucket_cap_mb", &O::shard_bucket_cap_mb, "shard_stage 2: size of a gradient bucket (MiB)")
      .above(0)
      .at_most(1e6);
  schema.field("shard_keep_window_gradients", &O::shard_keep_window_gradients,
               "shard_stage 2 and 3: reduce gradients once per accumulation window");
  schema.field("tensor_group", &O::tensor_group, "ranks of a tensor group within a stage").at_least(1);
  schema.field("tensor_plan", &O::tensor_plan,
               "cuts by pattern of layers, added to the modules' plans: column, row, vocabulary or whole");
  schema.field("tensor_sequence_parallel", &O::tensor_sequence_parallel,
               "divide norms, dropout and residuals along the sequence");
  schema.field("sequential", &O::sequential, "path of the levin::Sequential to cut; empty: the module's only one");
  schema.field("trace", &O::trace, "folder for a trace of one batch (picture and Chrome trace); empty: none");
  schema.field("trace_batch", &O::trace_batch, "batch of a call to trace, counted from 1").at_least(1);
  schema
      .field("gather_after_fit", &O::gather_after_fit,
             "gather the full parameters after a call; false where no rank can hold them")
      .formerly("whole_after_fit");
  describe_rank_options(schema);
}

Pipeline::Pipeline(const Options& options) : RankedStrategy("pipeline", rank_options(options)), options_(options) {}

Pipeline::~Pipeline() = default;

StrategyCapabilities Pipeline::capabilities() const {
  StrategyCapabilities capabilities = RankedStrategy::capabilities();
  capabilities.manual_optimization = false;
  return capabilities;
}

// ---- Setting up

void Pipeline::setup_environment(const StrategySetup& setup) {
  RankedStrategy::setup_environment(setup);
  if (setup.sync_batchnorm && ranks().world_size() > 1)
    throw ConfigError(
        "trainer.sync_batchnorm does not work with strategy 'pipeline', whose ranks have different layers");
  mixed_type_ = setup.mixed_type;
  if (ranks().world_size() > 1) connect();
}

DeviceMesh Pipeline::make_mesh() {
  const int64_t world = ranks().world_size();
  const int64_t tensor = world == 1 ? 1 : options_.tensor_group;
  if (tensor > world || world % tensor != 0)
    throw ConfigError(
        fmt::format("pipeline.tensor_group is {0}: {1} ranks cannot be divided into groups of {0}; valid: a divisor of "
                    "their number",
                    tensor, world));
  const int64_t all = world / tensor;
  const int64_t batches = options_.data_parallel;
  if (all % batches != 0)
    throw ConfigError(fmt::format("pipeline.data_parallel is {}, which does not divide the {} ranks; valid: a divisor",
                                  batches, all));
  if (options_.shard_optimizer && batches == 1 && all > 1)
    throw ConfigError(
        "pipeline.shard_optimizer divides the optimizer's state over pipelines side by side, and "
        "pipeline.data_parallel is 1; hint: data_parallel: 2, or leave it out");
  if (options_.shard_stage > 1 && !options_.shard_optimizer)
    throw ConfigError(
        fmt::format("pipeline.shard_stage is {}, and pipeline.shard_optimizer is false; hint: shard_optimizer: true, "
                    "or strategy: {{pipeline: 2, shard: {{size: 2, stage: {}}}}}",
                    options_.shard_stage, options_.shard_stage));
  if (options_.shard_stage > 1 && options_.schedule == "zero_bubble")
    throw ConfigError(
        fmt::format("pipeline.schedule is zero_bubble, which computes gradients of weights after their backward, and "
                    "shard stage {} divides gradients within it; valid: gpipe, 1f1b, interleaved, or shard stage 1",
                    options_.shard_stage));
  const int64_t shards = !options_.shard_optimizer       ? 1
                         : options_.shard_group == "all" ? batches
                                                         : std::stoll(options_.shard_group);
  if (batches % shards != 0)
    throw ConfigError(
        fmt::format("pipeline.shard_group is {}: {} pipelines side by side cannot be divided into groups of {}; valid: "
                    "all, or a divisor of their number",
                    options_.shard_group, batches, shards));
  if (tensor > 1 && all == batches)
    throw ConfigError(
        fmt::format("pipeline.tensor_group is {}, and no ranks are left for a second stage; valid: strategy: "
                    "{{tensor: N}}, with replicate or shard",
                    tensor));
  return DeviceMesh({{std::string(DeviceMesh::kPipeline), all / batches},
                     {std::string(DeviceMesh::kReplicate), batches / shards},
                     {std::string(DeviceMesh::kShard), shards},
                     {std::string(DeviceMesh::kTensor), tensor}},
                    world);
}

/// All that is needed to connect ranks is done before the first batch: in the midst of one it would block a rank for
/// whose messages others wait.
void Pipeline::connect() {
  const c10::DeviceGuard current(root_device());
  const auto make_group = [this] {
    auto group = ranks().make_group_along(DeviceMesh::kPipeline);
    if (stages_ == nullptr) stages_ = group;  // for what all stages do together as well
    return group;
  };
  const bool closed = chunks_per_rank() > 1;
  activations_ = std::make_unique<StageRing>(make_group, StageRing::Direction::kToNext, closed);
  gradients_ = std::make_unique<StageRing>(make_group, StageRing::Direction::kToPrevious, closed);
  groups_ = {.replicas = ranks().group_along({DeviceMesh::kReplicate}),
             .shards = ranks().group_along({DeviceMesh::kShard})};
  tensor_group_ = ranks().group_along({DeviceMesh::kTensor});
  parts_ = groups_.shards == nullptr && tensor_group_ == nullptr
               ? stages_
               : ranks().group_along({DeviceMesh::kPipeline, DeviceMesh::kShard, DeviceMesh::kTensor});
  activations_->meet(root_device());
  gradients_->meet(root_device());
  const at::Tensor element = at::zeros({1}, root_device());
  for (Collective* group :
       {&collective(), stages_.get(), parts_.get(), groups_.replicas.get(), groups_.shards.get(), tensor_group_.get()})
    if (group != nullptr) group->all_reduce(element, ReduceOp::kSum)->wait();
}

Strategy::DataParallelRank Pipeline::data_parallel_rank() {
  const DeviceMesh& mesh = ranks().mesh();
  const int64_t rank = environment().rank();
  return {.rank = mesh.coordinate(rank, DeviceMesh::kReplicate) * mesh.size(DeviceMesh::kShard) +
                  mesh.coordinate(rank, DeviceMesh::kShard),
          .size = mesh.size(DeviceMesh::kReplicate) * mesh.size(DeviceMesh::kShard)};
}

int64_t Pipeline::data_parallel_size(int64_t devices_of_host, int64_t hosts) const {
  return devices_of_host * hosts == 1 ? 1 : options_.data_parallel;
}

int64_t Pipeline::chunks_per_rank() const {
  if (stages() == 1) return 1;  // there is nothing to interleave
  if (options_.chunks_per_rank > 0) return options_.chunks_per_rank;
  return options_.schedule == "interleaved" ? 2 : 1;
}

SequentialImpl& Pipeline::find_sequential(Module& module) {
  const auto found = outermost_sequentials(module);
  std::vector<std::string> names;
  names.reserve(found.size());
  for (const auto& [name, sequential] : found) names.push_back(name);
  sequential_path_ = options_.sequential;
  if (options_.sequential.empty()) {
    if (found.empty())
      throw ConfigError(
          fmt::format("strategy '{}' cuts a levin::Sequential, and {} has none; hint: register one with "
                      "the module and call it once in training_step",
                      name(), module.name()));
    if (found.size() > 1)
      throw ConfigError(
          fmt::format("strategy '{}' cuts one levin::Sequential, and {} has {}: {}; hint: sequential: {} "
                      "in its options says which",
                      name(), module.name(), found.size(), join(names), names.front()));
    sequential_path_ = found.begin()->first;
    return *found.begin()->second;
  }
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    if (part.key() == options_.sequential)
      if (auto* sequential = dynamic_cast<SequentialImpl*>(part.value().get())) return *sequential;
  throw ConfigError(fmt::format("pipeline.sequential is '{}', which is no levin::Sequential of {}{}",
                                options_.sequential, module.name(), valid_names_hint(options_.sequential, names)));
}

void Pipeline::measure(Module& module, SequentialImpl& sequential, std::vector<ChainUnit>& units) const {
  const Batch micro_batch = split_batch(sample_(), options_.micro_batches, kMicroBatches).front();
  try {
    measure_chain(module, sequential, micro_batch, kRepetitions, units);
  } catch (const c10::Error& error) {
    if (is_out_of_memory(std::current_exception())) throw;
    throw Error("pipeline",
                fmt::format("the first micro-batch, of {} examples, on which the elements of '{}' are timed, "
                            "failed: {}; hint: where a layer needs batches of one size, micro_batches must "
                            "divide the batch size",
                            micro_batch.size(), sequential_path_, error.what_without_backtrace()));
  }
}

/// Elements of each chunk. Rank 0 measures for all.
std::vector<int64_t> Pipeline::balance(Module& module, SequentialImpl& sequential) {
  const int64_t chunks = stages() * chunks_per_rank();
  std::vector<ChainUnit> units = describe_chain(sequential);
  BalanceBy by = balance_by(options_.balance_by);
  std::vector<int64_t> elements = options_.balance.elements;
  if (!elements.empty()) {
    check_balance(elements, static_cast<int64_t>(units.size()), chunks, sequential_path_);
    if (by == BalanceBy::kTime) by = BalanceBy::kParameters;
  } else {
    // Without training there is nothing to measure with.
    if (by == BalanceBy::kTime && (sample_ == nullptr || !absent_.empty())) by = BalanceBy::kParameters;
    std::string text;
    if (collective().rank() == 0) {
      if (by != BalanceBy::kParameters && sample_ != nullptr && absent_.empty()) measure(module, sequential, units);
      text = numbers_text(automatic_balance(units, chunks, by, sequential_path_));
    }
    elements = numbers_from(collective().broadcast_bytes(text, 0));
  }
  std::vector<std::string> places;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t of_stage = ranks().world_size() / stages();
    const int64_t first = chunk % stages() * of_stage;
    places.push_back(of_stage == 1 ? fmt::format("rank {}", first)
                                   : fmt::format("ranks {}-{}", first, first + of_stage - 1));
  }
  const double bubble = theoretical_bubble(
      options_.schedule,
      {.stages = stages(), .micro_batches = options_.micro_batches, .chunks_per_rank = chunks_per_rank()});
  log::rank_zero_info(fmt::format("the sequential '{}' in {} stages, schedule {}, {} micro-batches\n{}",
                                  sequential_path_, stages(), options_.schedule, options_.micro_batches,
                                  partition_table(units, elements, by, places, bubble)));
  return elements;
}

void Pipeline::setup_module(Module& module) {
  if (ranks().world_size() == 1) return move_to_device(module, root_device());
  SequentialImpl& sequential = find_sequential(module);
  require_same_model(module, collective());
  absent_ = absent_parameter(module, collective());
  if (absent_.empty()) {
    // From the host, where all of it has room: an earlier call may have left rank 0's on a device, while the modules of
    // the others are new.
    move_to_device(module, at::kCPU);
    broadcast_model(module, ranks().process_group());
  }
  const std::vector<int64_t> elements = balance(module, sequential);
  sample_ = nullptr;
  if (tensor_group_ != nullptr)
    tensor_ = cut_layers(module, options_.tensor_plan, tensor_group_, root_device(), options_.tensor_sequence_parallel);
  has_checked_gradients_ = false;

  PipelineEngineOptions engine{.sequential = sequential_path_,
                               .chunk_ends = {},
                               .schedule = options_.schedule,
                               .micro_batches = options_.micro_batches,
                               .checkpoint = options_.checkpoint,
                               .device = root_device()};
  std::unordered_map<const void*, std::vector<int64_t>> users;  ///< the chunk of each element that has a tensor
  std::unordered_set<const void*> outside;
  add_tensors(module, &sequential, outside);
  size_t element = 0;
  for (size_t chunk = 0; chunk < elements.size(); ++chunk) {
    engine.chunk_ends.push_back(element + static_cast<size_t>(elements[chunk]));
    for (; element < engine.chunk_ends.back(); ++element) {
      if (sequential.element(element).module() == nullptr) continue;
      std::unordered_set<const void*> tensors;
      add_tensors(*sequential.element(element).module(), nullptr, tensors);
      for (const void* tensor : tensors) users[tensor].push_back(static_cast<int64_t>(chunk));
    }
  }
  parameters_ = std::make_unique<StageParameters>(
      module, root_device(),
      [&](const at::Tensor& tensor) {
        StageParameters::Users result;
        const void* key = tensor.unsafeGetTensorImpl();
        if (outside.contains(key)) return result;
        for (const int64_t chunk : users[key]) result.stages.insert(chunk % stages());
        if (users[key].size() == 1) result.chunk = users[key].front();
        return result;
      },
      stages_, groups_,
      options_.shard_stage == 1 || groups_.shards == nullptr ? StageParameters::Division::kOptimizerState
                                                             : StageParameters::Division::kByChunk);
  if (tensor_ != nullptr)
    tensor_->save_only([this](const at::Tensor& parameter) { return parameters_->is_own(parameter); });
  // Modules that have more to move override it.
  {
    const at::NoGradGuard no_grad;
    module.to(root_device());
  }
  shard_chunks(module);
  hold_shards(/*divide_tensors=*/groups_.shards != nullptr || tensor_ != nullptr);
  for (const auto& [chunk, sharded] : sharded_) engine.sharded[chunk] = sharded.get();
  // All ranks make the group, also those of a stage that shares all its parameters with others.
  if (options_.shard_stage > 1 && groups_.shards != nullptr) {
    auto replicas = ranks().group_along({DeviceMesh::kReplicate, DeviceMesh::kShard});
    if (!sharded_.empty()) engine.replicas = std::move(replicas);
  }
  engine_ = std::make_unique<PipelineEngine>(sequential, stages_, *activations_, *gradients_, std::move(engine));
  // The steps of all stages draw the same random numbers.
  const std::string state = engine_->stage() == 0 ? state_to_bytes(capture_rng_state(root_device())) : "";
  restore_rng_state(state_from_bytes(stages_->broadcast_bytes(state, 0)), root_device());
}

/// Each chunk for itself: its forward is a pass of its own.
void Pipeline::shard_chunks(Module& module) {
  // Beside parameters that stay whole in 32 bits, the divided ones are gathered in 32 bits too, on all stages:
  // operators that autocast leaves alone, such as layer_norm, take no mixture of weights and inputs.
  const auto compute_type = parameters_->has_shared_parameters() ? std::nullopt : mixed_type_;
  for (const auto& [chunk, parameters] : parameters_->of_chunks())
    sharded_[chunk] = std::make_unique<ShardedModel>(
        module, groups_.shards, groups_.replicas,
        ShardedModelOptions{.stage = options_.shard_stage,
                            .compute_type = compute_type,
                            .parameters = parameters,
                            .units = named_units(module),
                            .bucket_bytes = static_cast<int64_t>(options_.shard_bucket_cap_mb * (1 << 20)),
                            .prefetch = options_.shard_prefetch,
                            .keeps_window_gradients = options_.shard_keep_window_gradients});
}

void Pipeline::hold_shards(bool divide_tensors) {
  for (const auto& [chunk, sharded] : sharded_) parameters_->set_local_shards(sharded->entries());
  std::vector<ParallelModel::Entry> entries = parameters_->entries();
  if (tensor_ != nullptr) entries = tensor_->entries(std::move(entries));
  hold(ParallelModel(name(), std::move(entries),
                     {.group = parts_, .device = root_device(), .divide_tensors = divide_tensors}));
}

void Pipeline::check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (parameters_ == nullptr) return;
  if (optim::capabilities_of(optimizer).needs_closure)
    throw ConfigError(
        fmt::format("strategy '{}' does not work with an optimizer that evaluates the loss itself "
                    "(LBFGS, SAM), because each stage has its own",
                    name()));
  if (options_.shard_optimizer) require_tensor_wise(optimizer, fmt::format("'{}' with shard_optimizer", name()));
  require_divisible_state(optimizer, name());
  if (tensor_ != nullptr) return require_element_wise(optimizer, name());
  if (!options_.shard_optimizer || optim::capabilities_of(optimizer).element_wise) return;
  parameters_->divide_by_tensor();
  for (const auto& [chunk, sharded] : sharded_) sharded->divide_by_tensor();
  hold_shards(/*divide_tensors=*/false);
}

// ---- State

State Pipeline::module_state(Module& module) {
  for (const auto& [chunk, sharded] : sharded_) sharded->take_changes();
  if (tensor_ != nullptr) tensor_->require_behaviours();
  State state = DividedModel::module_state(module);
  return shares_are_divided() ? tensor_->place_shares(state, *groups_.shards) : state;
}

void Pipeline::load_module_state(Module& module, const State& state) {
  DividedModel::load_module_state(module, shares_are_divided() ? tensor_->own_shares(state, *groups_.shards) : state);
  if (parameters_ == nullptr) return;
  parameters_->send_all();
  for (const auto& [chunk, sharded] : sharded_) sharded->local_shards_changed();
  absent_.clear();
}

State Pipeline::place_optimizer_state(State state) const {
  State placed = DividedModel::place_optimizer_state(std::move(state));
  return shares_are_divided() ? tensor_->place_shares(placed, *groups_.shards) : placed;
}

State Pipeline::own_optimizer_state(const State& saved) const {
  return DividedModel::own_optimizer_state(shares_are_divided() ? tensor_->own_optimizer_shares(saved, *groups_.shards)
                                                                : saved);
}

void Pipeline::release_module() {
  if (parameters_ == nullptr || !options_.gather_after_fit) return;
  for (const auto& [chunk, sharded] : sharded_) sharded->gather_full_parameters();
  if (tensor_ == nullptr) return parameters_->gather_full_parameters();
  parameters_->gather_full_parameters(
      [this](const at::Tensor& parameter, const at::Tensor& values) { return tensor_->whole_of(parameter, values); });
  tensor_->forget_shares();
}

bool Pipeline::keeps_gradients_back() const {
  return std::ranges::any_of(sharded_, [](const auto& item) { return item.second->has_kept_gradients(); });
}

void Pipeline::drop_kept_gradients(const std::vector<at::Tensor>& but_of) {
  for (const auto& [chunk, sharded] : sharded_) sharded->drop_kept_gradients(but_of);
}

void Pipeline::combine_kept_gradients() {
  for (const auto& [chunk, sharded] : sharded_) sharded->reduce_kept_gradients();
}

// ---- Steps

void Pipeline::require_weights() const {
  require_parameters(name(), absent_);
  if (tensor_ != nullptr) tensor_->require_behaviours();
}

std::shared_ptr<void> Pipeline::tensor_scope() const {
  return tensor_ == nullptr ? nullptr : std::make_shared<WeightForwardScope>();
}

StepOutput Pipeline::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  if (engine_ == nullptr) return Strategy::forward_backward(batch, phases, window);
  require_weights();
  if (window.index == 0) {
    parameters_->drop_gradients();
    drop_kept_gradients({});
  }
  ReplicaGradients* replicas = window.sync ? parameters_->replica_gradients() : nullptr;
  const bool traced = ++batches_ == options_.trace_batch && !options_.trace.empty();
  StepOutput output = engine_->train(batch, phases, window.sync, replicas, traced);
  parameters_->send_buffers_to_replicas();
  if (traced) write_trace();
  if (window.sync) parameters_->combine_gradients();
  if (window.sync && tensor_ != nullptr && !std::exchange(has_checked_gradients_, true))
    tensor_->require_equal_gradients(parallel_model());
  if (window.sync) {
    totals_ = reduce_window(window, phases.window_weight(), collective(), root_device());
    // Ranks of the last stages have it, and gradients are averaged over pipelines.
    const LossWeight mean_of_ranks = totals_->mean_weight;
    for (int64_t other = 1; other < stages(); ++other) totals_->mean_weight += mean_of_ranks;
  }
  phases.after_backward();
  return output;
}

/// Of the first pipeline; its ranks come to it together.
void Pipeline::write_trace() {
  if (data_parallel_rank().rank != 0 || (tensor_group_ != nullptr && tensor_group_->rank() != 0)) return;
  using Kind = PipelineAction::Kind;
  static const std::map<Kind, PipelineEvent::Kind> kKinds = {
      {Kind::kForward, PipelineEvent::Kind::kForward},
      {Kind::kBackward, PipelineEvent::Kind::kBackward},
      {Kind::kBackwardInput, PipelineEvent::Kind::kBackwardInput},
      {Kind::kBackwardWeight, PipelineEvent::Kind::kBackwardWeight}};
  std::vector<PipelineEvent> own;
  for (const auto& done : engine_->done()) {
    PipelineEvent event{.rank = engine_->stage(),
                        .chunk = done.action.chunk / stages(),
                        .micro_batch = done.action.micro_batch,
                        .kind = PipelineEvent::Kind::kReceiveWait,
                        .begin_ns = done.waited_from,
                        .end_ns = done.from};
    if (event.end_ns > event.begin_ns) own.push_back(event);
    event.kind = kKinds.at(done.action.kind);
    event.begin_ns = done.from;
    event.end_ns = done.to;
    own.push_back(event);
  }
  // Clocks of other hosts are compared where all ranks pass a barrier.
  stages_->barrier();
  const auto clocks = stages_->gather_bytes(std::to_string(DeviceTimes::now()));
  const auto bytes = stages_->gather_bytes(events_to_bytes(own));
  if (engine_->stage() != 0) return;
  const bool one_host = environment().local_world_size() == ranks().world_size();
  std::vector<PipelineEvent> all;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    const int64_t ahead = one_host ? 0 : std::stoll(clocks.front()) - std::stoll(clocks[rank]);
    const auto events = events_from_bytes(bytes[rank], ahead);
    all.insert(all.end(), events.begin(), events.end());
  }
  const double theory = theoretical_bubble(
      options_.schedule,
      {.stages = stages(), .micro_batches = engine_->micro_batches(), .chunks_per_rank = chunks_per_rank()});
  write_pipeline_trace(
      options_.trace, all,
      fmt::format("{}, {} stages, {} micro-batches", options_.schedule, stages(), engine_->micro_batches()), theory);
  log::rank_zero_info(
      fmt::format("batch {} in the pipeline: idle {:.1f} % of the time, by theory {:.1f} %; trace in {}", batches_,
                  100 * measured_bubble(all).mean, 100 * theory, options_.trace));
}

StepOutput Pipeline::evaluate(const Batch& batch, StepPhases& phases) {
  if (engine_ == nullptr) return phases.forward(batch);
  require_weights();
  const auto layers = tensor_scope();
  const auto scope = engine_->evaluation();
  return phases.forward(batch);
}

std::shared_ptr<void> Pipeline::forward_scope() {
  if (engine_ == nullptr) return nullptr;
  require_weights();
  return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(tensor_scope(),
                                                                                   engine_->evaluation());
}

bool Pipeline::owns_outputs() const {
  if (engine_ == nullptr) return true;
  return engine_->is_last_stage() && (tensor_group_ == nullptr || tensor_group_->rank() == 0);
}

std::shared_ptr<void> Pipeline::full_parameters(const torch::nn::Module& module) {
  if (sharded_.empty() && tensor_ == nullptr) return nullptr;
  require_weights();
  const auto scopes = std::make_shared<std::vector<std::shared_ptr<void>>>();
  for (const auto& [chunk, sharded] : sharded_) scopes->push_back(sharded->full_parameters(module));
  if (tensor_ != nullptr) scopes->push_back(tensor_->full_parameters(module));
  // What was written goes into the shares, and then into the ranks' parts of these.
  return std::shared_ptr<void>(scopes.get(), [scopes](void*) {
    for (; !scopes->empty(); scopes->pop_back()) scopes->back().reset();
  });
}

void Pipeline::prepare_step() {
  for (const auto& [chunk, sharded] : sharded_) sharded->prepare_step();
}

void Pipeline::finish_step() {
  if (parameters_ != nullptr) parameters_->send_parameters();
  for (const auto& [chunk, sharded] : sharded_) sharded->finish_step();
}

void Pipeline::shards_changed() {
  if (parameters_ != nullptr) parameters_->send_parameters();
  for (const auto& [chunk, sharded] : sharded_) sharded->local_shards_changed();
}

void Pipeline::restart_steps(bool alone) {
  if (alone && engine_ != nullptr)
    throw ConfigError(
        fmt::format("batch_size_finder does not work with strategy '{}', whose ranks cannot run a step "
                    "alone and so cannot step back together",
                    name()));
  if (parameters_ != nullptr && parameters_->replica_gradients() != nullptr)
    parameters_->replica_gradients()->restart();
}

void Pipeline::teardown() {
  hold();
  engine_.reset();
  sharded_.clear();
  parameters_.reset();
  tensor_.reset();
  batches_ = 0;
  sample_ = nullptr;
  stages_.reset();
  activations_.reset();
  gradients_.reset();
  groups_ = {};
  tensor_group_.reset();
  parts_.reset();
  RankedStrategy::teardown();
}

}  // namespace levin
