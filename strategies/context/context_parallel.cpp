#include <levin/strategies/context/context_parallel.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/weight_behaviour.h>
#include <levin/strategies/context/context_cut.h>
#include <levin/strategies/ddp/communication_hooks.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

DdpOptions ddp_options_of(const ContextParallelOptions& options) {
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

void ContextParallelOptions::describe(Schema<ContextParallelOptions>& schema) {
  using O = ContextParallelOptions;
  schema.field("context_group", &O::context_group, "ranks that divide each sequence: all or a number")
      .require("all or a number of ranks", [](const std::string& value) {
        return value == "all" || (!value.empty() && value.size() < 10 && value.front() != '0' &&
                                  std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; }));
      });
  schema.field("dimension", &O::dimension, "dimension of a batch's tensors that has the positions").at_least(1);
  schema.field("tensors", &O::tensors, "tensors of a batch to divide; none: all with as many positions as the first");
  schema
      .field(
          "method", &O::method,
          "how attention sees the positions of other ranks: all_to_all exchanges heads, of which there are as many as "
          "ranks; ring passes keys and values on, for any number of heads")
      .one_of({"all_to_all", "ring"});
  schema.field("bucket_cap_mb", &O::bucket_cap_mb, "size of a gradient bucket (MiB)").above(0).at_most(1e6);
  schema.field("find_unused_parameters", &O::find_unused_parameters, "allow losses that leave out parameters");
  schema.field("broadcast_buffers", &O::broadcast_buffers, "broadcast rank 0's buffers before each step");
  schema
      .field("gradient_compression", &O::gradient_compression,
             "compression of averaged gradients to float16 or bfloat16")
      .one_of(gradient_compressions());
  describe_rank_options(schema);
}

ContextParallel::ContextParallel(const Options& options) : Ddp("context", ddp_options_of(options)), options_(options) {}

ContextParallel::~ContextParallel() = default;

// ---- Setting up

DeviceMesh ContextParallel::make_mesh() {
  const int64_t all = ranks().world_size();
  const int64_t size = options_.context_group == "all" || all == 1 ? all : std::stoll(options_.context_group);
  if (size > all || all % size != 0)
    throw ConfigError(
        fmt::format("context.context_group is {}: {} ranks cannot be divided into groups of {}; valid: all, "
                    "or a divisor of their number",
                    options_.context_group, all, size));
  return DeviceMesh({{std::string(DeviceMesh::kReplicate), all / size}, {std::string(DeviceMesh::kContext), size}},
                    all);
}

void ContextParallel::setup_environment(const StrategySetup& setup) {
  Ddp::setup_environment(setup);
  group_ = ranks().group_along({DeviceMesh::kContext});
}

Strategy::DataParallelRank ContextParallel::data_parallel_rank() {
  const DeviceMesh& mesh = ranks().mesh();
  return {.rank = mesh.coordinate(environment().rank(), DeviceMesh::kReplicate),
          .size = mesh.size(DeviceMesh::kReplicate)};
}

Strategy::DataParallelRank ContextParallel::loss_rank() {
  const DeviceMesh& mesh = ranks().mesh();
  const DataParallelRank data = data_parallel_rank();
  const int64_t parts = mesh.size(DeviceMesh::kContext);
  return {.rank = data.rank * parts + mesh.coordinate(environment().rank(), DeviceMesh::kContext),
          .size = data.size * parts};
}

int64_t ContextParallel::data_parallel_size(int64_t devices_of_host, int64_t hosts) const {
  const int64_t all = devices_of_host * hosts;
  return options_.context_group == "all" ? 1 : std::max<int64_t>(1, all / std::stoll(options_.context_group));
}

void ContextParallel::setup_module(Module& module) {
  Ddp::setup_module(module);
  cut_.reset();
  if (group_ == nullptr) return;
  cut_ = std::make_unique<ContextCut>(
      ContextCutOptions{.dimension = options_.dimension, .tensors = options_.tensors, .method = options_.method},
      group_, module);
}

void ContextParallel::restart_steps(bool alone) {
  if (alone && is_divided())
    throw ConfigError(
        fmt::format("batch_size_finder does not work with strategy '{}', whose ranks cannot run a step "
                    "alone and so cannot step back together",
                    name()));
  Ddp::restart_steps(alone);
}

void ContextParallel::teardown() {
  cut_.reset();
  group_.reset();
  Ddp::teardown();
}

// ---- Batches

Batch ContextParallel::part_of(const Batch& batch) { return cut_ == nullptr ? batch : cut_->part_of(batch); }

bool ContextParallel::is_first() { return cut_ == nullptr || cut_->is_first(); }

Batch ContextParallel::whole_of(const Batch& prediction) {
  return cut_ == nullptr ? prediction : cut_->whole_of(prediction);
}

// ---- Steps

StepOutput ContextParallel::forward(const Batch& batch, StepPhases& phases) {
  if (cut_ == nullptr) return Ddp::forward(batch, phases);
  return cut_->training_forward(batch, [&](const Batch& part) { return Ddp::forward(part, phases); });
}

/// The loss is of a part of each example.
double ContextParallel::loss_share() const { return Ddp::loss_share() * (cut_ == nullptr ? 1 : cut_->share()); }

StepOutput ContextParallel::manual_step(const Batch& batch, StepPhases& phases) {
  if (cut_ == nullptr) return Ddp::manual_step(batch, phases);
  const WeightForwardScope scope;
  return Ddp::manual_step(cut_->cut(batch), phases);
}

StepOutput ContextParallel::evaluate(const Batch& batch, StepPhases& phases) {
  if (cut_ == nullptr) return Ddp::evaluate(batch, phases);
  const WeightForwardScope scope;
  return Ddp::evaluate(cut_->cut(batch), phases);
}

std::shared_ptr<void> ContextParallel::forward_scope() {
  return cut_ == nullptr ? nullptr : std::make_shared<WeightForwardScope>();
}

GraphSupport ContextParallel::graph_support() {
  if (is_divided())
    return {.recorder = nullptr, .why_not = "attention over sequences that are cut asks other ranks inside of forward"};
  return Ddp::graph_support();
}

}  // namespace levin
