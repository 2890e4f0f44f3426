#include <levin/strategies/tensor/tensor_parallel.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/weight_behaviour.h>
#include <levin/strategies/ddp/communication_hooks.h>
#include <levin/strategies/ranks/divisible_optimizer.h>
#include <levin/strategies/tensor/tensor_model.h>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace levin {
namespace {

DdpOptions ddp_options(const TensorParallelOptions& options) {
  DdpOptions ddp;
  ddp.bucket_cap_mb = options.bucket_cap_mb;
  ddp.find_unused_parameters = options.find_unused_parameters;
  ddp.broadcast_buffers = options.broadcast_buffers;
  ddp.gradient_compression = options.gradient_compression;
  ddp.start_method = options.start_method;
  ddp.backend = options.backend;
  ddp.timeout = options.timeout;
  ddp.start_timeout = options.start_timeout;
  ddp.stall_report = options.stall_report;
  ddp.hang_timeout = options.hang_timeout;
  return ddp;
}

}  // namespace

void TensorParallelOptions::describe(Schema<TensorParallelOptions>& schema) {
  using O = TensorParallelOptions;
  schema.field("tensor_group", &O::tensor_group, "ranks of a tensor group: all or a number")
      .require("all or a number of ranks", [](const std::string& value) {
        return value == "all" || (!value.empty() && value.size() < 10 && value.front() != '0' &&
                                  std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; }));
      });
  schema.field("plan", &O::plan,
               "cuts by pattern of layers, added to the modules' plans: column, row, vocabulary or whole");
  schema.field("sequence_parallel", &O::sequence_parallel, "divide norms, dropout and residuals along the sequence");
  schema.field("bucket_cap_mb", &O::bucket_cap_mb, "size of a gradient bucket (MiB)").above(0).at_most(1e6);
  schema.field("find_unused_parameters", &O::find_unused_parameters, "allow losses that leave out parameters");
  schema.field("broadcast_buffers", &O::broadcast_buffers, "broadcast the first replica's buffers before each step");
  schema
      .field("gradient_compression", &O::gradient_compression,
             "compression of averaged gradients to float16 or bfloat16")
      .one_of(gradient_compressions());
  describe_rank_options(schema);
}

TensorParallel::TensorParallel(const Options& options) : Ddp("tensor", ddp_options(options)), options_(options) {}

TensorParallel::~TensorParallel() = default;

// ---- Setting up

DeviceMesh TensorParallel::make_mesh() {
  const int64_t all = ranks().world_size();
  const int64_t size = options_.tensor_group == "all" || all == 1 ? all : std::stoll(options_.tensor_group);
  if (size > all || all % size != 0)
    throw ConfigError(
        fmt::format("tensor.tensor_group is {}: {} ranks cannot be divided into groups of {}; valid: all, "
                    "or a divisor of their number",
                    options_.tensor_group, all, size));
  return DeviceMesh({{std::string(DeviceMesh::kReplicate), all / size}, {std::string(DeviceMesh::kTensor), size}}, all);
}

void TensorParallel::setup_environment(const StrategySetup& setup) {
  Ddp::setup_environment(setup);
  group_ = ranks().group_along({DeviceMesh::kTensor});
}

Strategy::DataParallelRank TensorParallel::data_parallel_rank() {
  const DeviceMesh& mesh = ranks().mesh();
  return {.rank = mesh.coordinate(environment().rank(), DeviceMesh::kReplicate),
          .size = mesh.size(DeviceMesh::kReplicate)};
}

int64_t TensorParallel::data_parallel_size(int64_t devices_of_host, int64_t hosts) const {
  const int64_t all = devices_of_host * hosts;
  return options_.tensor_group == "all" ? 1 : std::max<int64_t>(1, all / std::stoll(options_.tensor_group));
}

void TensorParallel::setup_module(Module& module) {
  Ddp::setup_module(module);
  if (!is_divided()) return;
  // The weights are drawn whole, from the seed: initial values are those of one device.
  model_ = cut_layers(module, options_.plan, group_, root_device(), options_.sequence_parallel);
  has_checked_gradients_ = false;
  hold(ParallelModel(name(), model_->entries(), {.group = group_, .device = root_device(), .divide_tensors = true}));
}

void TensorParallel::check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (model_ == nullptr) return;
  require_divisible_state(optimizer, name());
  require_element_wise(optimizer, name());
}

// ---- State

State TensorParallel::module_state(Module& module) {
  if (model_ != nullptr) model_->require_behaviours();
  return DividedModel::module_state(module);
}

void TensorParallel::release_module() {
  hold();
  if (model_ != nullptr) model_->gather_full_parameters();
}

// ---- Steps

StepOutput TensorParallel::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  if (model_ != nullptr) model_->require_behaviours();
  StepOutput output = Ddp::forward_backward(batch, phases, window);
  if (model_ != nullptr && window.sync && !std::exchange(has_checked_gradients_, true))
    model_->require_equal_gradients(parallel_model());
  return output;
}

StepOutput TensorParallel::forward(const Batch& batch, StepPhases& phases) {
  const WeightForwardScope scope;
  return Ddp::forward(batch, phases);
}

StepOutput TensorParallel::manual_step(const Batch& batch, StepPhases& phases) {
  if (model_ != nullptr) model_->require_behaviours();
  return Ddp::manual_step(batch, phases);
}

StepOutput TensorParallel::evaluate(const Batch& batch, StepPhases& phases) {
  if (model_ != nullptr) model_->require_behaviours();
  const WeightForwardScope scope;
  return Ddp::evaluate(batch, phases);
}

std::shared_ptr<void> TensorParallel::forward_scope() {
  if (model_ == nullptr) return nullptr;
  model_->require_behaviours();
  return std::make_shared<WeightForwardScope>();
}

std::shared_ptr<void> TensorParallel::full_parameters(const torch::nn::Module& module) {
  return model_ == nullptr ? nullptr : model_->full_parameters(module);
}

GraphSupport TensorParallel::graph_support() {
  if (is_divided()) return {.recorder = nullptr, .why_not = "layers that are cut ask other ranks inside of forward"};
  return Ddp::graph_support();
}

void TensorParallel::restart_steps(bool alone) {
  if (alone && model_ != nullptr)
    throw ConfigError(
        fmt::format("batch_size_finder does not work with strategy '{}', whose ranks cannot run a step "
                    "alone and so cannot step back together",
                    name()));
  Ddp::restart_steps(alone);
}

void TensorParallel::teardown() {
  hold();
  model_.reset();
  group_.reset();
  Ddp::teardown();
}

}  // namespace levin
