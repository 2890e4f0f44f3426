#include <levin/strategies/context/context_parallel.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/context_units.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/uneven_targets.h>
#include <levin/core/nn/weight_behaviour.h>
#include <levin/strategies/ddp/communication_hooks.h>

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// Of the positions, at most as many and at least so.
std::string lengths_that_would_do(int64_t length, int64_t ranks) {
  const int64_t below = length / ranks * ranks;
  return below >= 2 * ranks ? fmt::format("{} or {}", below, below + ranks) : std::to_string(2 * ranks);
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
  has_attended_ = false;
  units_.reset();
  if (is_divided()) units_ = std::make_unique<ContextUnits>(module);
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
  units_.reset();
  group_.reset();
  Ddp::teardown();
}

// ---- Batches

int64_t ContextParallel::length_of(const Batch& batch) const {
  const auto has_dimension = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() > options_.dimension;
  };
  for (const std::string& name : options_.tensors) {
    const at::Tensor* const found = batch.find(name);
    std::vector<std::string> names;
    for (const auto& [item, tensor] : batch.items())
      if (has_dimension(tensor)) names.push_back(fmt::format("{} {}", item, c10::str(tensor.sizes())));
    if (found == nullptr || !has_dimension(*found))
      throw ConfigError(fmt::format(
          "strategy.context.tensors: '{}' {}; valid: {}", name,
          found == nullptr ? std::string("is not in the batch")
                           : fmt::format("is {}, without a dimension {}", c10::str(found->sizes()), options_.dimension),
          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  if (!options_.tensors.empty()) return batch[options_.tensors.front()].size(options_.dimension);
  for (const auto& [name, tensor] : batch.items())
    if (has_dimension(tensor)) return tensor.size(options_.dimension);
  std::vector<std::string> shapes;
  for (const auto& [name, tensor] : batch.items())
    shapes.push_back(fmt::format("{} {}", name, tensor.defined() ? c10::str(tensor.sizes()) : "undefined"));
  throw ConfigError(
      fmt::format("strategy.context: no tensor of the batch has a dimension {} with positions; got {}; "
                  "hint: strategy.context.dimension, or replicate instead of context",
                  options_.dimension, fmt::join(shapes, ", ")));
}

bool ContextParallel::is_cut(const std::string& name, const at::Tensor& tensor, int64_t length) const {
  if (!options_.tensors.empty()) return std::ranges::find(options_.tensors, name) != options_.tensors.end();
  return tensor.defined() && tensor.dim() > options_.dimension && tensor.size(options_.dimension) == length;
}

Batch ContextParallel::cut(const Batch& batch) const {
  if (group_ == nullptr) return batch;
  const int64_t ranks = group_->world_size();
  const int64_t length = length_of(batch);
  if (length % ranks != 0 || length < 2 * ranks)
    throw Error("context",
                fmt::format("a batch has sequences of {} positions, which cannot be divided over {} ranks; "
                            "valid: a multiple of {}, at least {}, such as {}; hint: pad or cut the examples",
                            length, ranks, ranks, 2 * ranks, lengths_that_would_do(length, ranks)));
  Batch part = batch;
  for (auto& [name, tensor] : part.items()) {
    if (!is_cut(name, tensor, length)) continue;
    if (tensor.size(options_.dimension) != length)
      throw Error("context", fmt::format("the batch's tensors have different numbers of positions; got {} in '{}', {} "
                                         "in '{}'; hint: strategy.context.tensors",
                                         length, options_.tensors.front(), tensor.size(options_.dimension), name));
    tensor = cut_context(tensor, options_.dimension, group_);
  }
  return part;
}

Batch ContextParallel::part_of(const Batch& batch) {
  if (group_ == nullptr) return batch;
  const bool has_positions = std::ranges::any_of(batch.items(), [&](const Batch::Item& item) {
    return item.second.defined() && item.second.dim() > options_.dimension;
  });
  if (!has_positions && options_.tensors.empty()) return batch;
  const int64_t length = length_of(batch);
  return length % group_->world_size() == 0 && length >= 2 * group_->world_size() ? cut(batch) : batch;
}

Batch ContextParallel::whole_of(const Batch& prediction) {
  Batch whole = prediction;
  for (auto& [name, tensor] : whole.items())
    if (tensor.defined()) tensor = full_sequence(tensor);
  return whole;
}

// ---- Steps

StepOutput ContextParallel::forward(const Batch& batch, StepPhases& phases) {
  if (group_ == nullptr) return Ddp::forward(batch, phases);
  const WeightForwardScope scope;
  const int64_t before = detail::context_attention_calls();
  detail::take_uneven_targets();
  StepOutput output = Ddp::forward(cut(batch), phases);
  // Also where a weight of zero has taken away what was not a number.
  if (!output.has_loss())
    throw Error(
        "context",
        "training_step gave no loss on this rank, but ranks that divide an example run backward together; hint: "
        "a loss that is a number also where none of the rank's positions counts, with the weight 0: "
        "at::where(count > 0, loss, at::zeros_like(loss))");
  if (detail::take_uneven_targets() && !output.weight().defined())
    throw Error("context",
                "the loss leaves some targets out, or weighs classes, so that ranks have means over other totals, but "
                "training_step gives no weight; hint: return {.loss = loss, .weight = targets.ne(ignored).sum()}, with "
                "class weights {.loss = loss, .weight = class_weights.index_select(0, targets.flatten()).sum()}");
  if (!std::exchange(has_attended_, true) && output.has_loss() && detail::context_attention_calls() == before)
    throw ConfigError(
        "strategy.context: no scaled_dot_product_attention and no full_sequence has run over the sequences that ranks "
        "divide, and nothing else mixes positions; hint: replicate instead of context, which divides examples");
  return output;
}

/// The loss is of a part of each example.
double ContextParallel::loss_share() const {
  return Ddp::loss_share() / static_cast<double>(rank_group().mesh().size(DeviceMesh::kContext));
}

StepOutput ContextParallel::manual_step(const Batch& batch, StepPhases& phases) {
  const WeightForwardScope scope;
  return Ddp::manual_step(cut(batch), phases);
}

StepOutput ContextParallel::evaluate(const Batch& batch, StepPhases& phases) {
  const WeightForwardScope scope;
  return Ddp::evaluate(cut(batch), phases);
}

std::shared_ptr<void> ContextParallel::forward_scope() {
  return group_ == nullptr ? nullptr : std::make_shared<WeightForwardScope>();
}

GraphSupport ContextParallel::graph_support() {
  if (is_divided())
    return {.recorder = nullptr, .why_not = "attention over sequences that are cut asks other ranks inside of forward"};
  return Ddp::graph_support();
}

}  // namespace levin
