#include <levin/strategies/parameter_server/parameter_server.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/strategies/ddp/sync_batch_norm.h>
#include <levin/strategies/ranks/divisible_optimizer.h>
#include <levin/strategies/ranks/model_agreement.h>
#include <levin/strategies/ranks/norm_reduction.h>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace levin {
namespace {

/// Of messages between workers and servers; further ones of the same packet follow.
constexpr int64_t kPushTag = 0;
constexpr int64_t kPullTag = 16;

using Packet = ServedParameters::Packet;
using Works = std::vector<std::unique_ptr<Work>>;

void send(Collective& ranks, const Packet& packet, int64_t to, int64_t tag, Works& works) {
  for (const at::Tensor& part : packet) works.push_back(ranks.send(part, to, tag++));
}

void receive(Collective& ranks, const Packet& packet, int64_t from, int64_t tag, Works& works) {
  for (const at::Tensor& part : packet) works.push_back(ranks.receive(part, from, tag++));
}

void wait_for(const Works& works) {
  for (const auto& work : works) work->wait();
}

bool fits(const Packet& packet, const Packet& other) {
  if (packet.size() != other.size()) return false;
  for (size_t i = 0; i < packet.size(); ++i)
    if (packet[i].numel() != other[i].numel() || packet[i].scalar_type() != other[i].scalar_type()) return false;
  return true;
}

}  // namespace

void ParameterServerOptions::describe(Schema<ParameterServerOptions>& schema) {
  using O = ParameterServerOptions;
  schema.field("mode", &O::mode, "sync: a step for each batch of all workers; async: a step for each worker's batch")
      .one_of({"sync", "async"});
  schema.field("servers", &O::servers, "ranks, the first ones, that divide the parameters and run the optimizer")
      .at_least(1);
  schema.field("max_staleness", &O::max_staleness, "async: batches that a worker may be ahead of the slowest; null: any")
      .at_least(0);
  schema
      .field("delay_compensation", &O::delay_compensation,
             "async: how much of a gradient's delay is made good (lambda of Zheng et al. 2017); 0: nothing")
      .at_least(0);
  schema.field("update_log", &O::update_log, "async: folder for each server's log of its updates; empty: none");
  schema.field("broadcast_buffers", &O::broadcast_buffers,
               "sync: rank 0's buffers (running statistics) go to all ranks before each step");
  describe_rank_options(schema);
}

ParameterServer::ParameterServer(const Options& options)
    : RankedStrategy("parameter_server", rank_options(options)), options_(options) {
  if (options.mode == "async") return;
  const auto refuse = [](const char* option) {
    throw ConfigError(
        fmt::format("parameter_server.{} is an option of mode: async, and mode is sync, in which no gradient is late; "
                    "hint: mode: async, or leave it out",
                    option));
  };
  if (options.max_staleness) refuse("max_staleness");
  if (options.delay_compensation > 0) refuse("delay_compensation");
  if (!options.update_log.empty()) refuse("update_log");
}

ParameterServer::~ParameterServer() = default;

StrategyCapabilities ParameterServer::capabilities() const { return RankedStrategy::capabilities(); }

// ---- Setting up

void ParameterServer::prepare(const StrategySetup& setup) {
  RankedStrategy::prepare(setup);
  if (options_.servers > ranks().world_size())
    throw ConfigError(
        fmt::format("parameter_server.servers is {}, and the job has {} rank{}, of which the first ones serve; valid: "
                    "1 to {}",
                    options_.servers, ranks().world_size(), ranks().world_size() == 1 ? "" : "s",
                    ranks().world_size()));
}

bool ParameterServer::is_server() { return environment().rank() < options_.servers; }

void ParameterServer::setup_environment(const StrategySetup& setup) {
  sync_batchnorm_ = setup.sync_batchnorm;
  RankedStrategy::setup_environment(setup);
}

void ParameterServer::setup_module(Module& module) {
  module.to(root_device());
  module_ = &module;
  has_buffers_ = !module.buffers().empty();
  if (ranks().world_size() == 1) return;
  require_same_model(module, collective());
  broadcast_model(module, ranks().process_group());
  served_ = std::make_unique<ServedParameters>(module, options_.servers, environment().rank(), /*own_memory=*/false);
  if (options_.servers > 1) {
    std::vector<std::string> shares;
    for (int64_t server = 0; server < options_.servers; ++server)
      shares.push_back(std::to_string(served_->elements(server)));
    log::rank_zero_info(fmt::format("parameters of the {} servers: {}", options_.servers, join(shares)));
  }
}

at::Tensor ParameterServer::local_shard(const at::Tensor& parameter) {
  return served_ == nullptr ? parameter : served_->local_shard(parameter);
}

optim::ParameterNames ParameterServer::parameter_names(const Module& module) {
  return served_ == nullptr ? DividedModel::parameter_names(module) : served_->names();
}

void ParameterServer::check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (served_ == nullptr) return;
  if (optim::capabilities_of(optimizer).needs_closure)
    throw ConfigError(
        fmt::format("strategy '{}' does not work with an optimizer that evaluates the loss itself (LBFGS), because "
                    "each server has its own",
                    name()));
  require_divisible_state(optimizer, name());
}

// ---- State

FindPart ParameterServer::find_part() const {
  if (served_ == nullptr) return nullptr;
  return [this](const std::string& name) { return served_->part_of(name); };
}

void ParameterServer::load_module_state(Module& module, const State& state) {
  DividedModel::load_module_state(module, state);
  if (served_ != nullptr) served_->load_shards();
}

// ---- Steps

void ParameterServer::send_buffers(Module& module) {
  if (served_ == nullptr || !options_.broadcast_buffers || !has_buffers_) return;
  const WaitingIn waiting(ranks().rank_status(), "broadcast of buffers");
  broadcast_buffers(module, ranks().process_group());
}

StepOutput ParameterServer::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  if (served_ == nullptr) return Strategy::forward_backward(batch, phases, window);
  send_buffers(phases.module());
  StepOutput output = [&] {
    const SyncBatchNormScope statistics(sync_batchnorm_ ? ranks().shared_collective() : nullptr);
    return phases.forward(batch);
  }();
  if (!output.has_loss() && !window.sync) return output;
  // A batch that this rank alone skips counts as zero: the others wait for its part.
  StepOutput start = output;
  if (!output.has_loss()) start.loss() = at::zeros({}, at::TensorOptions().device(root_device())).requires_grad_();
  phases.before_backward(start);
  participation_.add(window);
  if (output.has_loss()) phases.backward(start);
  if (window.sync) push(/*skipped=*/!output.has_loss());
  participation_.reduce(window, collective(), root_device());
  phases.after_backward();
  return output;
}

StepOutput ParameterServer::manual_step(const Batch& batch, StepPhases& phases) {
  if (served_ == nullptr) return phases.forward(batch);
  send_buffers(phases.module());
  const SyncBatchNormScope statistics(sync_batchnorm_ ? ranks().shared_collective() : nullptr);
  return phases.forward(batch);
}

void ParameterServer::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  Strategy::manual_backward(loss, options);
  if (served_ != nullptr && options.sync_grad) push(/*skipped=*/false);
}

void ParameterServer::push(bool skipped) {
  const WaitingIn waiting(ranks().rank_status(), "push of gradients");
  served_->note_trained();
  const int64_t rank = environment().rank();
  const int64_t all = ranks().world_size();
  Works sent;
  Works received;
  if (is_server()) {
    const Packet fitting = served_->gradient_packet(rank);
    incoming_.resize(static_cast<size_t>(all - 1));
    size_t i = 0;
    for (int64_t worker = 0; worker < all; ++worker) {
      if (worker == rank) continue;
      Packet& packet = incoming_[i++];
      if (!fits(packet, fitting)) packet = served_->gradient_packet(rank);
      receive(collective(), packet, worker, kPushTag, received);
    }
  }
  outgoing_.resize(static_cast<size_t>(options_.servers));
  for (int64_t server = 0; server < options_.servers; ++server) {
    if (server == rank) continue;
    Packet& packet = outgoing_[static_cast<size_t>(server)];
    if (Packet fitting = served_->gradient_packet(server); !fits(packet, fitting)) packet = std::move(fitting);
    served_->take_gradients(server, skipped, packet);
    send(collective(), packet, server, kPushTag, sent);
  }
  wait_for(received);
  served_->average_gradients(skipped, incoming_);
  wait_for(sent);
}

void ParameterServer::pull() {
  if (served_ == nullptr) return;
  const WaitingIn waiting(ranks().rank_status(), "pull of parameters");
  served_->note_trained();
  const int64_t rank = environment().rank();
  Works sent;
  std::vector<Packet> packets;
  std::vector<Works> received(static_cast<size_t>(options_.servers));
  for (int64_t server = 0; server < options_.servers; ++server) {
    packets.push_back(served_->value_packet(server));
    if (server != rank) receive(collective(), packets.back(), server, kPullTag, received[static_cast<size_t>(server)]);
  }
  if (is_server()) {
    Packet& own = packets[static_cast<size_t>(rank)];
    served_->copy_values(own);
    for (int64_t worker = 0; worker < ranks().world_size(); ++worker)
      if (worker != rank) send(collective(), own, worker, kPullTag, sent);
  }
  for (int64_t server = 0; server < options_.servers; ++server) {
    if (server == rank) continue;
    wait_for(received[static_cast<size_t>(server)]);
    served_->set_values(server, packets[static_cast<size_t>(server)]);
  }
  wait_for(sent);
}

void ParameterServer::combine_found_inf(at::Tensor& found_inf) {
  if (served_ != nullptr) collective().all_reduce(found_inf, ReduceOp::kMax)->wait();
}

at::Tensor ParameterServer::reduce_norm(at::Tensor norms, double order) {
  return served_ == nullptr ? norms : reduce_norms(norms, order, collective(), root_device());
}

void ParameterServer::clip_adaptively(const std::vector<at::Tensor>& parameters, double ratio) {
  std::vector<at::Tensor> own;
  for (const at::Tensor& parameter : parameters)
    if (parameter.numel() > 0) own.push_back(parameter);
  if (!own.empty()) DividedModel::clip_adaptively(own, ratio);
}

void ParameterServer::restart_steps(bool alone) {
  if (alone && served_ != nullptr)
    throw ConfigError(
        fmt::format("batch_size_finder does not work with strategy '{}', whose ranks cannot run a step alone and so "
                    "cannot step back together",
                    name()));
}

void ParameterServer::teardown() {
  served_.reset();
  outgoing_.clear();
  incoming_.clear();
  module_ = nullptr;
  RankedStrategy::teardown();
}

}  // namespace levin
