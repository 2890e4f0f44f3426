#include <levin/strategies/sharded/sharded.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/rank_status.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/unit_patterns.h>
#include <levin/core/nn/weight_behaviour.h>
#include <levin/core/optim/fused_optimizer.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/strategies/context/context_cut.h>
#include <levin/strategies/ddp/sync_batch_norm.h>
#include <levin/strategies/ranks/divisible_optimizer.h>
#include <levin/strategies/ranks/model_agreement.h>
#include <levin/strategies/ranks/window_reducer.h>
#include <levin/strategies/sharded/sharded_model.h>
#include <levin/strategies/tensor/tensor_model.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>

namespace levin {
namespace {

constexpr double kBytesPerMib = 1024.0 * 1024.0;
/// Elements of each local shard that tell whether a step has changed it.
constexpr int64_t kLookedAt = 1024;
/// A step with a small learning rate may change nothing by rounding.
constexpr int64_t kMostIdleSteps = 3;

/// The number that a text is, or nothing.
std::optional<int64_t> to_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<at::ScalarType> to_type(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  return std::nullopt;
}

}  // namespace

void ShardedOptions::describe(Schema<ShardedOptions>& schema) {
  using O = ShardedOptions;
  schema
      .field("stage", &O::stage,
             "quantities that ranks divide; 1: optimizer's state; 2: gradients too; 3: parameters too")
      .at_least(1)
      .at_most(3);
  schema.field("units", &O::units, "stage 3: units gathered separately, by type or path; empty: every unit");
  schema.field("min_unit_parameters", &O::min_unit_parameters, "smallest unit (parameters) that is gathered separately")
      .at_least(0);
  schema.field("prefetch", &O::prefetch, "units that are gathered before they are needed")
      .formerly("gathers_ahead")
      .at_least(0);
  schema.field("bucket_cap_mb", &O::bucket_cap_mb, "stages 1 and 2: size of a gradient bucket (MiB)")
      .above(0)
      .at_most(1e6);
  schema.field("offload", &O::offload, "keep local shards and the optimizer, with its step, on the host");
  schema
      .field("shard_group", &O::shard_group,
             "ranks that hold one copy of the model together: all, node (those of one host) or a number")
      .formerly("shard_over")
      .require("all, node or a number of ranks", [](const std::string& value) {
        return value == "all" || value == "node" || to_number(value).value_or(0) > 0;
      });
  schema.field("tensor_group", &O::tensor_group, "ranks of a tensor group").at_least(1);
  schema.field("tensor_plan", &O::tensor_plan,
               "cuts by pattern of layers, added to the modules' plans: column, row, vocabulary or whole");
  schema.field("tensor_sequence_parallel", &O::tensor_sequence_parallel,
               "divide norms, dropout and residuals along the sequence");
  schema.field("context_group", &O::context_group, "ranks that divide each sequence").at_least(1);
  schema.field("context_dimension", &O::context_dimension, "dimension of a batch's tensors that has the positions")
      .at_least(1);
  schema.field("context_tensors", &O::context_tensors,
               "tensors of a batch to divide; none: all with as many positions as the first");
  schema
      .field(
          "context_method", &O::context_method,
          "how attention sees the positions of other ranks: all_to_all exchanges heads, ring passes keys and values on")
      .one_of({"all_to_all", "ring"});
  schema.field("reduce_type", &O::reduce_type, "dtype of the gradient reduction; same: the compute dtype")
      .one_of({"same", "float32", "bfloat16", "float16"});
  schema.field("find_unused_parameters", &O::find_unused_parameters,
               "allow losses that leave out parameters; false: their gradients count as zero");
  schema.field("keep_window_gradients", &O::keep_window_gradients,
               "keep full gradients until an accumulation window ends: less communication, more memory");
  schema
      .field("gather_after_fit", &O::gather_after_fit,
             "gather the full parameters after a call; false where no rank can hold them")
      .formerly("whole_after_fit");
  schema.field("broadcast_buffers", &O::broadcast_buffers, "broadcast rank 0's buffers before each step");
  describe_rank_options(schema);
}

Sharded::Sharded(const Options& options) : RankedStrategy("sharded", rank_options(options)), options_(options) {}

Sharded::~Sharded() = default;

void Sharded::setup_environment(const StrategySetup& setup) {
  RankedStrategy::setup_environment(setup);
  sync_batchnorm_ = setup.sync_batchnorm;
  mixed_type_ = setup.mixed_type;
  shard_group_ = ranks().group_along({DeviceMesh::kShard});
  tensor_group_ = ranks().group_along({DeviceMesh::kTensor});
  context_group_ = ranks().group_along({DeviceMesh::kContext});
  loss_group_ = ranks().group_along({DeviceMesh::kReplicate, DeviceMesh::kShard, DeviceMesh::kContext});
  parts_group_ = ranks().group_along({DeviceMesh::kShard, DeviceMesh::kTensor});
  replica_group_ = ranks().group_along({DeviceMesh::kReplicate, DeviceMesh::kContext});
}

DeviceMesh Sharded::make_mesh() {
  const int64_t world = ranks().world_size();
  const int64_t tensor = world == 1 ? 1 : options_.tensor_group;
  if (tensor > world || world % tensor != 0)
    throw ConfigError(fmt::format(
        "sharded.tensor_group is {0}: {1} ranks cannot be divided into groups of {0}; valid: a divisor of their number",
        tensor, world));
  const int64_t context = world == 1 ? 1 : options_.context_group;
  if (world / tensor % context != 0)
    throw ConfigError(
        fmt::format("sharded.context_group is {0}: {1} ranks cannot be divided into groups of {0}; valid: a divisor of "
                    "their number",
                    context, world / tensor));
  if (tensor > 1 && context > 1)
    throw ConfigError(
        fmt::format("sharded.context_group is {} and tensor_group is {}; valid: one of them above 1", context, tensor));
  const int64_t all = world / tensor / context;
  const int64_t size = all == 1 || options_.shard_group == "all" ? all
                       : options_.shard_group == "node"
                           ? std::max<int64_t>(1, environment().local_world_size() / tensor / context)
                           : *to_number(options_.shard_group);
  if (size > all || all % size != 0)
    throw ConfigError(fmt::format(
        "sharded.shard_group is {}: {} ranks cannot be divided into groups of {}; valid: all, or a divisor of their "
        "number",
        options_.shard_group, all, size));
  if (tensor > 1 && (options_.offload || size == 1))
    throw ConfigError(fmt::format("sharded.tensor_group is {}, and {}; valid: {}", tensor,
                                  options_.offload ? "the parts are to be in the host's memory (offload)"
                                                   : "no ranks are left to divide what each of them holds",
                                  options_.offload ? "offload: false" : "strategy: {tensor: N}"));
  return DeviceMesh({{std::string(DeviceMesh::kReplicate), all / size},
                     {std::string(DeviceMesh::kShard), size},
                     {std::string(DeviceMesh::kContext), context},
                     {std::string(DeviceMesh::kTensor), tensor}},
                    world);
}

Strategy::DataParallelRank Sharded::data_parallel_rank() {
  const DeviceMesh& mesh = ranks().mesh();
  const int64_t shards = mesh.size(DeviceMesh::kShard);
  const int64_t rank = environment().rank();
  return {.rank = mesh.coordinate(rank, DeviceMesh::kReplicate) * shards + mesh.coordinate(rank, DeviceMesh::kShard),
          .size = mesh.size(DeviceMesh::kReplicate) * shards};
}

Strategy::DataParallelRank Sharded::loss_rank() {
  return {.rank = loss_group_ == nullptr ? 0 : loss_group_->rank(),
          .size = loss_group_ == nullptr ? 1 : loss_group_->world_size()};
}

int64_t Sharded::data_parallel_size(int64_t devices_of_host, int64_t hosts) const {
  return std::max<int64_t>(1, devices_of_host * hosts / options_.tensor_group / options_.context_group);
}

bool Sharded::owns_outputs() const { return tensor_group_ == nullptr || tensor_group_->rank() == 0; }

/// In which operators meet layers and sequences that are cut.
std::shared_ptr<void> Sharded::layer_scope() const {
  if (tensor_ != nullptr) tensor_->require_behaviours();
  return tensor_ == nullptr && context_ == nullptr ? nullptr : std::make_shared<WeightForwardScope>();
}

ShardedModelOptions Sharded::model_options() const {
  ShardedModelOptions sharding;
  sharding.stage = options_.stage;
  sharding.compute_type = mixed_type_;
  sharding.reduce_type = to_type(options_.reduce_type);
  sharding.min_elements = options_.min_unit_parameters;
  sharding.bucket_bytes = static_cast<int64_t>(options_.bucket_cap_mb * kBytesPerMib);
  sharding.prefetch = options_.prefetch;
  sharding.offload = options_.offload;
  sharding.finds_unused = options_.find_unused_parameters;
  sharding.keeps_window_gradients = options_.keep_window_gradients;
  return sharding;
}

std::shared_ptr<void> Sharded::build_scope(std::function<void(torch::nn::Module&)> prepare) {
  // Layers that are cut are whole before that.
  if (ranks().world_size() == 1 || options_.stage < 3 || tensor_group_ != nullptr) return nullptr;
  // The options outlive the build.
  const auto sharding = std::make_shared<ShardedModelOptions>(model_options());
  const auto build = std::make_shared<ShardedBuild>(shard_group_, replica_group_, *sharding,
                                                    [this, prepare = std::move(prepare)](torch::nn::Module& part) {
                                                      prepare(part);
                                                      move_to_device(part, root_device());
                                                    });
  return std::shared_ptr<void>(build.get(), [this, build, sharding](void*) {
    // What an exception interrupted may be half built.
    if (std::uncaught_exceptions() == 0) built_ = build->take();
  });
}

void Sharded::setup_module(Module& module) {
  move_to_device(module, root_device());
  has_buffers_ = !module.buffers().empty();
  looks_at_steps_ = false;
  idle_steps_ = 0;
  if (ranks().world_size() == 1) return;
  require_same_model(module, collective());
  std::unordered_set<const void*> built;
  for (const auto& part : built_)
    for (const auto& [unnamed, parameter] : part.parameters->parameters())
      built.insert(parameter.unsafeGetTensorImpl());
  absent_ = absent_parameter(module, collective(), built);
  // What was built in parts is alike by construction.
  if (built_.empty() && absent_.empty()) broadcast_model(module, ranks().process_group());
  if (tensor_group_ != nullptr)
    tensor_ = cut_layers(module, options_.tensor_plan, tensor_group_, root_device(), options_.tensor_sequence_parallel);
  has_checked_gradients_ = false;
  context_.reset();
  if (context_group_ != nullptr)
    context_ = std::make_unique<ContextCut>(ContextCutOptions{.dimension = options_.context_dimension,
                                                              .tensors = options_.context_tensors,
                                                              .method = options_.context_method},
                                            context_group_, module);
  ShardedModelOptions sharding = model_options();
  sharding.units =
      options_.units.empty() ? named_units(module) : select_units(module, options_.units, "strategy.sharded.units");
  model_ = std::make_unique<ShardedModel>(module, shard_group_, replica_group_, std::move(sharding),
                                          std::exchange(built_, {}));
  hold_shards(/*divide_tensors=*/true);
}

void Sharded::hold_shards(bool divide_tensors) {
  std::vector<ParallelModel::Entry> entries = model_->entries();
  if (tensor_ != nullptr) entries = tensor_->entries(std::move(entries));
  hold(ParallelModel(name(), std::move(entries),
                     {.group = parts_group_, .device = root_device(), .divide_tensors = divide_tensors}));
}

void Sharded::check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (model_ == nullptr) return;
  // Levin's and LibTorch's are known to step what is in their groups.
  const bool is_own = dynamic_cast<const optim::DeclaresCapabilities*>(&optimizer) != nullptr &&
                      dynamic_cast<const optim::FusedOptimizer*>(&optimizer) == nullptr;
  // Steps that loss scaling skips change nothing.
  if (is_own && mixed_type_ != at::kHalf) looks_at_steps_ = true;
  require_tensor_wise(optimizer, fmt::format("'{}'", name()));
  require_divisible_state(optimizer, name());
  if (tensor_ != nullptr) return require_element_wise(optimizer, name());
  if (optim::capabilities_of(optimizer).element_wise) return;
  model_->divide_by_tensor();
  hold_shards(/*divide_tensors=*/false);
}

State Sharded::module_state(Module& module) {
  if (model_ != nullptr) model_->take_changes();
  State state = DividedModel::module_state(module);
  return tensor_ == nullptr ? state : tensor_->place_shares(state, *shard_group_);
}

void Sharded::load_module_state(Module& module, const State& state) {
  DividedModel::load_module_state(module, tensor_ == nullptr ? state : tensor_->own_shares(state, *shard_group_));
  if (model_ == nullptr) return;
  model_->local_shards_changed();
  absent_.clear();
}

State Sharded::place_optimizer_state(State state) const {
  State placed = DividedModel::place_optimizer_state(std::move(state));
  return tensor_ == nullptr ? placed : tensor_->place_shares(placed, *shard_group_);
}

State Sharded::own_optimizer_state(const State& saved) const {
  return DividedModel::own_optimizer_state(tensor_ == nullptr ? saved
                                                              : tensor_->own_optimizer_shares(saved, *shard_group_));
}

// ---- Sequences

Batch Sharded::part_of(const Batch& batch) { return context_ == nullptr ? batch : context_->part_of(batch); }

Batch Sharded::whole_of(const Batch& prediction) {
  return context_ == nullptr ? prediction : context_->whole_of(prediction);
}

bool Sharded::is_first() { return context_ == nullptr || context_->is_first(); }

Batch Sharded::own_part(const Batch& batch) const { return context_ == nullptr ? batch : context_->cut(batch); }

StepOutput Sharded::training_forward(const Batch& batch, StepPhases& phases) {
  if (context_ == nullptr) return phases.forward(batch);
  return context_->training_forward(batch, [&](const Batch& part) { return phases.forward(part); });
}

// ---- Steps

void Sharded::require_weights() const { require_parameters(name(), absent_); }

void Sharded::send_buffers(Module& module) {
  if (!options_.broadcast_buffers || !has_buffers_) return;
  const WaitingIn waiting(ranks().rank_status(), "broadcast of buffers");
  broadcast_buffers(module, ranks().process_group());
}

StepOutput Sharded::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  if (model_ == nullptr) return Strategy::forward_backward(batch, phases, window);
  require_weights();
  if (window.index == 0) model_->drop_kept_gradients();
  try {
    send_buffers(phases.module());
    model_->begin_forward(/*training=*/true);
    StepOutput output = [&] {
      const auto saved = model_->saved_tensor_scope();
      const auto layers = layer_scope();
      const SyncBatchNormScope statistics(sync_batchnorm_ ? loss_group_ : nullptr);
      return training_forward(batch, phases);
    }();
    if (sync_batchnorm_ && ranks().world_size() > 1) require_loss_for_sync_batch_norm(output);
    if (!output.has_loss() && !model_->backward_is_collective(window.sync)) {
      model_->end_forward();
      return output;
    }
    // A batch that this rank alone skips counts as zero: the others wait for its part.
    StepOutput start = output;
    if (!output.has_loss()) start.loss() = at::zeros({}, at::TensorOptions().device(root_device())).requires_grad_();
    phases.before_backward(start);
    if (context_ != nullptr) phases.weigh(output, context_->share());
    model_->begin_backward(window.sync);
    {
      const WaitingIn waiting(window.sync ? ranks().rank_status() : nullptr, "reduction of gradients");
      if (output.has_loss()) {
        phases.backward(start);
        model_->end_backward();
      } else {
        model_->backward_without_loss();
      }
    }
    if (window.sync && tensor_ != nullptr && !std::exchange(has_checked_gradients_, true))
      tensor_->require_equal_gradients(parallel_model());
    if (window.sync) totals_ = reduce_window(window, phases.window_weight(), *loss_group_, root_device());
    phases.after_backward();
    return output;
  } catch (...) {
    model_->abandon();
    throw;
  }
}

StepOutput Sharded::manual_step(const Batch& batch, StepPhases& phases) {
  if (model_ == nullptr) return phases.forward(batch);
  require_weights();
  try {
    send_buffers(phases.module());
    model_->begin_forward(/*training=*/true);
    const auto saved = model_->saved_tensor_scope();
    if (tensor_ != nullptr) tensor_->require_behaviours();  // no scope of a forward: it runs backwards too
    const auto sequences = context_ == nullptr ? nullptr : std::make_shared<WeightForwardScope>();
    const SyncBatchNormScope statistics(sync_batchnorm_ ? loss_group_ : nullptr);
    StepOutput output = phases.forward(own_part(batch));
    model_->end_forward();
    return output;
  } catch (...) {
    model_->abandon();
    throw;
  }
}

void Sharded::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (model_ == nullptr) return Strategy::manual_backward(loss, options);
  const WaitingIn waiting(options.sync_grad ? ranks().rank_status() : nullptr, "reduction of gradients");
  model_->begin_backward(options.sync_grad);
  Strategy::manual_backward(loss, options);
  model_->end_backward(/*in_step=*/true);
}

bool Sharded::keeps_gradients_back() const { return model_ != nullptr && model_->has_kept_gradients(); }

void Sharded::drop_kept_gradients(const std::vector<at::Tensor>& but_of) {
  if (model_ != nullptr) model_->drop_kept_gradients(but_of);
}

void Sharded::combine_kept_gradients() {
  if (model_ == nullptr) return;
  const WaitingIn waiting(ranks().rank_status(), "reduction of gradients");
  model_->reduce_kept_gradients();
}

StepOutput Sharded::evaluate(const Batch& batch, StepPhases& phases) {
  if (model_ == nullptr) return phases.forward(batch);
  require_weights();
  try {
    model_->begin_forward(/*training=*/false);
    const auto layers = layer_scope();
    StepOutput output = phases.forward(own_part(batch));
    model_->end_forward();
    return output;
  } catch (...) {
    model_->abandon();
    throw;
  }
}

std::shared_ptr<void> Sharded::forward_scope() {
  if (model_ == nullptr) return nullptr;
  require_weights();
  model_->begin_forward(/*training=*/false);
  return std::shared_ptr<void>(model_.get(), [this, layers = layer_scope()](void*) {
    try {
      model_->end_forward();
    } catch (const std::exception&) {
      // The group has failed, as the next use of it says.
      model_->abandon();
    }
  });
}

std::shared_ptr<void> Sharded::full_parameters(const torch::nn::Module& module) {
  if (model_ == nullptr) return nullptr;
  require_weights();
  std::shared_ptr<void> shares = model_->full_parameters(module);
  if (tensor_ == nullptr) return shares;
  std::shared_ptr<void> all = tensor_->full_parameters(module);
  // What was written goes into the shares, and then into the ranks' parts of these.
  return std::shared_ptr<void>(model_.get(), [shares = std::move(shares), all = std::move(all)](void*) mutable {
    all.reset();
    shares.reset();
  });
}

void Sharded::prepare_step() {
  if (model_ == nullptr) return;
  model_->prepare_step();
  before_step_.clear();
  if (!looks_at_steps_) return;
  for (const auto& [name, local_shard] : parallel_model().shard_names().items()) {
    if (!local_shard.grad().defined() || local_shard.numel() == 0) continue;
    const at::Tensor part = local_shard.detach().view({-1}).narrow(0, 0, std::min(local_shard.numel(), kLookedAt));
    const at::Tensor gradient = local_shard.grad().reshape({-1}).narrow(0, 0, part.numel());
    if (gradient.any().item<bool>()) before_step_.emplace_back(part, part.clone());
  }
}

void Sharded::finish_step() {
  if (model_ == nullptr) return;
  if (looks_at_steps_) look_at_step();
  model_->finish_step();
}

void Sharded::shards_changed() {
  if (model_ != nullptr) model_->local_shards_changed();
}

/// An optimizer that has kept parameters of its own changes these, and nobody would notice.
void Sharded::look_at_step() {
  const bool changed = std::any_of(before_step_.begin(), before_step_.end(),
                                   [](const auto& part) { return !part.first.equal(part.second); });
  const bool idle = !changed && !before_step_.empty();
  before_step_.clear();
  if (changed) looks_at_steps_ = false;
  if (idle && ++idle_steps_ == kMostIdleSteps)
    throw Error(
        name(),
        fmt::format("{} steps of the optimizer changed none of the parameters in its groups; hint: it must step "
                    "param_groups() and keep no copies of what it was made with",
                    kMostIdleSteps));
}

void Sharded::restart_steps(bool alone) {
  if (alone && model_ != nullptr)
    throw ConfigError(
        fmt::format("batch_size_finder does not work with strategy '{}', whose ranks cannot run a step "
                    "alone and so cannot step back together; hint: the command `plan` estimates the "
                    "largest batch",
                    name()));
}

void Sharded::release_module() {
  if (model_ == nullptr || !options_.gather_after_fit) return;
  model_->gather_full_parameters();
  if (tensor_ != nullptr) tensor_->gather_full_parameters();
}

void Sharded::teardown() {
  built_.clear();  // of a call that failed before its model was complete
  hold();
  model_.reset();
  tensor_.reset();
  context_.reset();
  for (auto* group : {&shard_group_, &replica_group_, &loss_group_, &tensor_group_, &context_group_, &parts_group_})
    group->reset();
  RankedStrategy::teardown();
}

}  // namespace levin
