#include <levin/strategies/pipeline/replica_gradients.h>

#include <levin/core/base/gradient_groups.h>
#include <levin/strategies/comm/c10d_collective.h>
#include <levin/strategies/ddp/gradient_reducer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace levin {
namespace {

constexpr int64_t kFirstChunk = 0;

using Parameters = std::vector<const ReplicaGradients::Parameter*>;

std::map<at::ScalarType, Parameters> by_type(const Parameters& parameters) {
  std::map<at::ScalarType, Parameters> result;
  for (const auto* parameter : parameters) result[parameter->tensor.scalar_type()].push_back(parameter);
  return result;
}

}  // namespace

ReplicaGradients::ReplicaGradients(std::vector<Parameter> parameters, StageGroups groups)
    : parameters_(std::move(parameters)), groups_(std::move(groups)) {}

ReplicaGradients::~ReplicaGradients() = default;

void ReplicaGradients::restart() {
  under_way_.clear();
  reducer_.reset();
  uses_reducer_ = false;
}

void ReplicaGradients::begin_batch(bool in_backward) {
  under_way_.clear();
  const auto* group = dynamic_cast<const C10dCollective*>(groups_.replicas.get());
  GradientReducer::Parameters first;
  for (const Parameter& parameter : parameters_)
    if (parameter.chunk == kFirstChunk && parameter.tensor.requires_grad())
      first.emplace_back(parameter.name, parameter.tensor);
  uses_reducer_ = in_backward && groups_.shards == nullptr && group != nullptr && !first.empty();
  if (!uses_reducer_) return;
  const c10::InferenceMode ordinary(false);
  if (reducer_ == nullptr || !reducer_->fits(first))
    reducer_ = std::make_unique<GradientReducer>(first, group->process_group(),
                                                 GradientReducerOptions{.completes_backward = true});
  reducer_->before_forward();
}

void ReplicaGradients::before_last_backward(int64_t chunk) {
  if (chunk == kFirstChunk && uses_reducer_) reducer_->before_backward({}, {.sync = true}, {});
}

void ReplicaGradients::after_last_backward(int64_t chunk) {
  if (chunk != kFirstChunk || !uses_reducer_) return start(chunk);
  // A replica may have skipped its batch, or a part of the model.
  reducer_->complete_backward();
}

void ReplicaGradients::finish() {
  start(kLate);
  for (const Exchange& exchange : under_way_) {
    exchange.work->wait();
    if (groups_.shards != nullptr && groups_.replicas != nullptr)
      groups_.replicas->all_reduce(exchange.part, ReduceOp::kMean)->wait();
    groups_.shards != nullptr ? take_part(exchange) : take(exchange);
  }
  under_way_.clear();
}

void ReplicaGradients::start(int64_t chunk) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  Parameters ready;
  for (const Parameter& parameter : parameters_)
    if (parameter.chunk == chunk && parameter.tensor.requires_grad()) ready.push_back(&parameter);
  for (auto& [type, parameters] : by_type(ready)) {
    const bool have_owners = parameters.front()->owner.has_value();  // all, or none
    under_way_.push_back(groups_.shards == nullptr ? start_mean(std::move(parameters))
                         : have_owners             ? start_mean_for_owners(std::move(parameters))
                                                   : start_mean_of_parts(std::move(parameters)));
  }
}

// ---- Whole gradients

ReplicaGradients::Exchange ReplicaGradients::start_mean(Parameters parameters) {
  Exchange exchange;
  std::vector<at::Tensor> flat;
  for (const Parameter* parameter : parameters) {
    const at::Tensor& tensor = parameter->tensor;
    // A replica may have skipped its batch, or a part of the model.
    if (!tensor.grad().defined()) tensor.mutable_grad() = at::zeros_like(tensor, tensor.options().requires_grad(false));
    if (tensor.grad().is_sparse()) tensor.mutable_grad() = dense_gradient(tensor.grad());
    flat.push_back(tensor.grad().reshape({-1}));
  }
  exchange.parameters = std::move(parameters);
  exchange.all = at::cat(flat);
  exchange.work = groups_.replicas->all_reduce(exchange.all, ReduceOp::kMean);
  return exchange;
}

void ReplicaGradients::take(const Exchange& exchange) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  int64_t offset = 0;
  for (const Parameter* parameter : exchange.parameters) {
    const at::Tensor& gradient = parameter->tensor.grad();
    gradient.copy_(exchange.all.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
    offset += gradient.numel();
  }
}

// ---- Parts of gradients

ReplicaGradients::Exchange ReplicaGradients::start_mean_of_parts(Parameters parameters) {
  const int64_t ranks = groups_.shards->world_size();
  int64_t row = 0;
  for (const Parameter* parameter : parameters) row += part_size(parameter->tensor);
  const auto options = parameters.front()->tensor.options().requires_grad(false);
  Exchange exchange;
  exchange.all = at::zeros({ranks, row}, options);
  int64_t offset = 0;
  for (const Parameter* parameter : parameters) {
    const int64_t size = part_size(parameter->tensor);
    if (parameter->tensor.grad().defined()) {
      const at::Tensor flat = dense_gradient(parameter->tensor.grad()).reshape({-1});
      for (int64_t rank = 0, begin = 0; rank < ranks && begin < flat.numel(); ++rank, begin += size) {
        const int64_t there = std::min(size, flat.numel() - begin);
        exchange.all[rank].narrow(0, offset, there).copy_(flat.narrow(0, begin, there));
      }
    }
    parameter->tensor.mutable_grad().reset();
    offset += size;
  }
  exchange.parameters = std::move(parameters);
  exchange.part = at::empty({row}, options);
  exchange.work = groups_.shards->reduce_scatter(exchange.part, exchange.all.view({-1}), ReduceOp::kMean);
  return exchange;
}

/// In the order of owners, so that each one's are together.
ReplicaGradients::Exchange ReplicaGradients::start_mean_for_owners(Parameters parameters) {
  std::ranges::stable_sort(parameters, {}, [](const Parameter* parameter) { return *parameter->owner; });
  Exchange exchange;
  std::vector<at::Tensor> flat;
  int64_t begin = 0;
  int64_t own = 0;
  for (const Parameter* parameter : parameters) {
    at::Tensor& gradient = parameter->tensor.mutable_grad();
    if (gradient.defined())
      flat.push_back(dense_gradient(gradient).reshape({-1}));
    else
      flat.push_back(at::zeros({parameter->tensor.numel()}, parameter->tensor.options().requires_grad(false)));
    gradient.reset();
    if (*parameter->owner < groups_.shards->rank()) begin += flat.back().numel();
    if (*parameter->owner == groups_.shards->rank()) own += flat.back().numel();
  }
  exchange.parameters = std::move(parameters);
  exchange.all = at::cat(flat);
  exchange.part = exchange.all.narrow(0, begin, own);
  exchange.work = groups_.shards->all_reduce(exchange.all, ReduceOp::kMean);
  return exchange;
}

void ReplicaGradients::take_part(const Exchange& exchange) {
  const c10::InferenceMode ordinary(false);
  const bool have_owners = exchange.parameters.front()->owner.has_value();
  const at::Tensor parts = have_owners ? exchange.part.clone() : exchange.part;  // without the other ranks'
  int64_t offset = 0;
  for (const Parameter* parameter : exchange.parameters) {
    const at::Tensor& local_shard = parameter->local_shard;
    const at::Tensor part = parts.narrow(0, offset, local_shard.numel()).view(local_shard.sizes());
    // Of earlier batches of the window, where a checkpoint had them.
    at::Tensor& gradient = parameter->local_shard.mutable_grad();
    gradient = gradient.defined() ? gradient + part : part;
    offset += have_owners ? local_shard.numel() : part_size(parameter->tensor);
  }
}

}  // namespace levin
