#include <levin/strategies/parameter_server/parameter_server.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/optim/optimizer_config.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/strategies/ddp/sync_batch_norm.h>
#include <levin/strategies/parameter_server/served_parameters.h>
#include <levin/strategies/parameter_server/update_server.h>
#include <levin/strategies/ranks/divisible_optimizer.h>
#include <levin/strategies/ranks/model_agreement.h>
#include <levin/strategies/ranks/window_reducer.h>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <sstream>
#include <utility>

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
  schema.field("servers", &O::servers, "first ranks that divide the parameters and run the optimizer").at_least(1);
  schema.field("max_staleness", &O::max_staleness, "async: batches by which a worker may lead the slowest; null: any")
      .at_least(0);
  schema
      .field("delay_compensation", &O::delay_compensation,
             "async: compensation of a gradient's delay (lambda of Zheng et al. 2017); 0: none")
      .at_least(0);
  schema.field("update_log", &O::update_log, "async: folder for each server's log of its updates; empty: none");
  schema.field("broadcast_buffers", &O::broadcast_buffers, "sync: broadcast rank 0's buffers before each step");
  describe_rank_options(schema);
}

ParameterServer::ParameterServer(const Options& options)
    : RankedStrategy("parameter_server", rank_options(options)), options_(options) {
  ranks().describe_roles([servers = options.servers](int64_t rank) {
    if (rank >= servers) return std::string();
    return servers == 1 ? std::string("; it was the parameter server")
                        : fmt::format("; it was parameter server {} of 0 to {}", rank, servers - 1);
  });
  if (is_async()) return;
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

StrategyCapabilities ParameterServer::capabilities() const {
  StrategyCapabilities capabilities = RankedStrategy::capabilities();
  if (is_async()) capabilities.manual_optimization = capabilities.iterable_datasets = false;
  return capabilities;
}

// ---- Setting up

void ParameterServer::prepare(const StrategySetup& setup) {
  RankedStrategy::prepare(setup);
  if (options_.servers > ranks().world_size())
    throw ConfigError(fmt::format(
        "parameter_server.servers is {}, and the job has {} rank{}, of which the first ones serve; valid: "
        "1 to {}",
        options_.servers, ranks().world_size(), ranks().world_size() == 1 ? "" : "s", ranks().world_size()));
}

bool ParameterServer::is_server() const { return served_ != nullptr && served_->is_server(); }

void ParameterServer::setup_environment(const StrategySetup& setup) {
  sync_batchnorm_ = setup.sync_batchnorm;
  if (are_steps_independent() && setup.sync_batchnorm)
    throw ConfigError(
        "trainer.sync_batchnorm does not work with parameter_server.mode async, whose workers do not run forward "
        "together; hint: mode: sync");
  if (are_steps_independent() && setup.mixed_type == at::kHalf)
    throw ConfigError(
        "trainer.precision 16-mixed does not work with parameter_server.mode async, whose workers have no loss scale "
        "in "
        "common; valid: bf16-mixed, 32-true; hint: mode: sync");
  RankedStrategy::setup_environment(setup);
}

void ParameterServer::setup_module(Module& module) {
  move_to_device(module, root_device());
  module_ = &module;
  keeps_gradients_back_ = false;
  has_buffers_ = !module.buffers().empty();
  if (!is_divided()) return;
  if (ranks().world_size() > 1) {
    require_same_model(module, collective());
    broadcast_model(module, ranks().process_group());
  }
  served_ = std::make_unique<ServedParameters>(module, options_.servers, environment().rank(), is_async());
  served_parts_ =
      ParallelModel(name(), served_->entries(), {.group = ranks().shared_collective(), .device = root_device()});
  // In mode async the trainer's optimizer has the module's parameters.
  if (!is_async()) hold(served_parts_);
  if (is_async() && store_ == nullptr) {
    exchange_ = ranks().make_exchange();
    store_ = collective().store().clone();
  }
  if (options_.servers > 1) {
    std::vector<std::string> shares;
    for (int64_t server = 0; server < options_.servers; ++server)
      shares.push_back(std::to_string(served_->elements(server)));
    log::rank_zero_info(fmt::format("parameters of the {} servers: {}", options_.servers, join(shares)));
  }
}

void ParameterServer::check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (served_ == nullptr) return;
  if (optim::capabilities_of(optimizer).needs_closure)
    throw ConfigError(fmt::format(
        "strategy '{}' does not work with an optimizer that evaluates the loss itself (LBFGS, SAM), because "
        "each server has its own",
        name()));
  require_divisible_state(optimizer, name());
  known_ = &optimizer;
}

// ---- State

void ParameterServer::load_module_state(Module& module, const State& state) {
  load_named_tensors(module, state);
  if (served_ != nullptr) served_->load_shards();
}

State ParameterServer::place_optimizer_state(State state) const {
  if (served_ != nullptr && is_async()) {
    // Learning rates are the trainer's, what is kept for each parameter is the server's.
    State of_server = optim::optimizer_state_dict(*stepping_optimizer(), served_parts_.shard_names());
    of_server["groups"] = state.at("groups");
    state = std::move(of_server);
  }
  return served_parts_.place_optimizer_state(state);
}

State ParameterServer::own_optimizer_state(const State& saved) const {
  State own = served_parts_.own_optimizer_state(saved);
  if (served_ == nullptr || !is_async()) return own;
  optim::load_optimizer_state_dict(*stepping_optimizer(), served_parts_.shard_names(), own);
  for (const char* kept : {"parameters", "archive"})
    if (own.find(kept) != nullptr) own[kept] = State::map();
  return own;
}

// ---- Steps

void ParameterServer::send_buffers(Module& module) {
  if (served_ == nullptr || !options_.broadcast_buffers || !has_buffers_ || ranks().world_size() == 1) return;
  const WaitingIn waiting(ranks().rank_status(), "broadcast of buffers");
  broadcast_buffers(module, ranks().process_group());
}

StepOutput ParameterServer::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  if (served_ == nullptr || is_async()) return Strategy::forward_backward(batch, phases, window);
  if (window.index == 0) served_->drop_gradients();
  send_buffers(phases.module());
  StepOutput output = [&] {
    const SyncBatchNormScope statistics(sync_batchnorm_ ? ranks().shared_collective() : nullptr);
    return phases.forward(batch);
  }();
  if (sync_batchnorm_ && ranks().world_size() > 1) require_loss_for_sync_batch_norm(output);
  if (!output.has_loss() && !window.sync) return output;
  // A batch that this rank alone skips counts as zero: the others wait for its part.
  StepOutput start = output;
  if (!output.has_loss()) start.loss() = at::zeros({}, at::TensorOptions().device(root_device())).requires_grad_();
  phases.before_backward(start);
  if (output.has_loss()) phases.backward(start);
  if (window.sync) push(/*skipped=*/!output.has_loss());
  if (window.sync) totals_ = reduce_window(window, phases.window_weight(), collective(), root_device());
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
  keeps_gradients_back_ = served_ != nullptr && !options.sync_grad;
  if (served_ != nullptr && options.sync_grad) push(/*skipped=*/false);
}

void ParameterServer::drop_kept_gradients(const std::vector<at::Tensor>& but_of) {
  if (served_ != nullptr) served_->drop_gradients(but_of);
}

void ParameterServer::combine_kept_gradients() {
  if (!std::exchange(keeps_gradients_back_, false)) return;
  push(/*skipped=*/false);
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
  if (!is_async()) served_->note_trained();
  const int64_t rank = environment().rank();
  Works sent;
  values_.resize(static_cast<size_t>(options_.servers));
  std::vector<Works> received(static_cast<size_t>(options_.servers));
  for (int64_t server = 0; server < options_.servers; ++server) {
    Packet& packet = values_[static_cast<size_t>(server)];
    if (Packet fitting = served_->value_packet(server); !fits(packet, fitting)) packet = std::move(fitting);
    if (server != rank) receive(collective(), packet, server, kPullTag, received[static_cast<size_t>(server)]);
  }
  if (is_server()) {
    Packet& own = values_[static_cast<size_t>(rank)];
    served_->copy_values(own);
    for (int64_t worker = 0; worker < ranks().world_size(); ++worker)
      if (worker != rank) send(collective(), own, worker, kPullTag, sent);
  }
  for (int64_t server = 0; server < options_.servers; ++server) {
    if (server == rank && !is_async()) continue;
    wait_for(received[static_cast<size_t>(server)]);
    served_->set_values(server, values_[static_cast<size_t>(server)]);
  }
  wait_for(sent);
}

void ParameterServer::finish_step() {
  if (served_ != nullptr && !is_async()) pull();
}

void ParameterServer::shards_changed() {
  if (served_ == nullptr) return;
  if (is_async())
    served_->load_shards();
  else
    pull();
}

// ---- Independent steps

const std::shared_ptr<torch::optim::Optimizer>& ParameterServer::stepping_optimizer() const {
  if (stepping_optimizer_ != nullptr) return stepping_optimizer_;
  const OptimizerConfigs configs = module_->configure_optimizers();
  LEVIN_CHECK(configs.size() == 1, "automatic optimization has one optimizer");
  const auto& optimizer = configs.front().optimizer;
  if (optimizer.get() == known_)
    throw Error(name(),
                "configure_optimizers gave the same optimizer twice; the servers of mode async step one of their own; "
                "hint: make it anew in each call");
  for (auto& group : optimizer->param_groups())
    for (at::Tensor& parameter : group.params()) parameter = served_parts_.local_shard(parameter);
  stepping_optimizer_ = optimizer;
  return stepping_optimizer_;
}

UpdateServer& ParameterServer::server() {
  if (server_ != nullptr) return *server_;
  const int64_t rank = environment().rank();
  UpdateServerOptions options{.rank = rank,
                              .workers = environment().world_size(),
                              .servers = options_.servers,
                              .max_staleness = options_.max_staleness,
                              .delay_compensation = options_.delay_compensation};
  if (!options_.update_log.empty()) options.log_file = fmt::format("{}/server-{}.csv", options_.update_log, rank);
  server_ = std::make_unique<UpdateServer>(*served_, stepping_optimizer(), exchange_, std::move(options));
  return *server_;
}

void ParameterServer::begin_batches(int64_t epoch, int64_t first, int64_t end) {
  served_->note_trained();
  epoch_ = epoch;
  first_batch_ = first;
  end_batch_ = end;
  counter_ = fmt::format("parameter_server/taken/{}", rounds_++);
  outgoing_.clear();
  values_.clear();
  for (int64_t server = 0; server < options_.servers; ++server) {
    outgoing_.push_back(served_->gradient_packet(server));
    values_.push_back(served_->value_packet(server));
  }
  ranks().bear_losses(options_.servers);
  if (is_server()) server().begin();
  in_round_ = true;
  ranks().forbid_collectives(
      "parameter_server.mode is async: inside an epoch workers do not wait for each other, and something asked for all "
      "of them at once (model_checkpoint.every_n_train_steps or train_time_interval, for instance); valid: at the end "
      "of an epoch; hint: every_n_epochs, or mode: sync");
}

std::optional<int64_t> ParameterServer::take_batch() {
  const int64_t batch = first_batch_ + store_->add(counter_, 1) - 1;
  return batch < end_batch_ ? std::optional(batch) : std::nullopt;
}

void ParameterServer::take_step(OptimizerHandle& optimizer, int64_t batch) {
  if (!in_round_)
    throw ConfigError(
        fmt::format("strategy '{}' with mode: async cannot take single steps, as learning_rate_finder and "
                    "batch_size_finder do; hint: mode: sync for the search",
                    name()));
  UpdateMessage message{.epoch = epoch_, .batch = batch};
  for (const auto& group : optimizer.optimizer().param_groups()) message.rates.push_back(group.options().get_lr());
  const at::Tensor packed = message.pack();
  const WaitingIn waiting(ranks().rank_status(), "answer of a parameter server");
  const int64_t rank = environment().rank();
  Works sent;
  Works received;
  for (int64_t server = 0; server < options_.servers; ++server) {
    Packet& gradients = outgoing_[static_cast<size_t>(server)];
    served_->take_gradients(server, /*all=*/false, gradients);
    if (server == rank) continue;
    receive(*exchange_, values_[static_cast<size_t>(server)], server, UpdateServer::kValuesTag, received);
    sent.push_back(exchange_->send(packed, server, UpdateServer::kMessageTag));
    send(*exchange_, gradients, server, UpdateServer::kGradientsTag, sent);
  }
  if (is_server()) {
    const auto own = static_cast<size_t>(rank);
    server().update_own(message, outgoing_[own], values_[own]);
  }
  wait_for(sent);
  wait_for(received);
  for (int64_t server = 0; server < options_.servers; ++server)
    served_->set_values(server, values_[static_cast<size_t>(server)]);
}

int64_t ParameterServer::meet(int64_t done, bool stopped) {
  const WaitingIn waiting(ranks().rank_status(), "the end of the other workers' steps");
  const at::Tensor packed = UpdateMessage{.done = true}.pack();
  Works sent;
  for (int64_t server = 0; server < options_.servers; ++server)
    if (server != environment().rank()) sent.push_back(exchange_->send(packed, server, UpdateServer::kMessageTag));
  wait_for(sent);
  if (is_server()) server().end();
  in_round_ = false;
  const int64_t workers = ranks().world_size();
  const std::vector<std::string> answers = ranks().meet(fmt::format("{} {}", done, stopped ? 1 : 0));
  ranks().forbid_collectives("");
  if (ranks().world_size() < workers) leave_out_workers();
  int64_t last = 0;
  bool any_stopped = false;
  for (const std::string& other : answers) {
    std::istringstream stream(other);
    int64_t of_rank = 0;
    bool was_stopped = false;
    stream >> of_rank >> was_stopped;
    last = std::max(last, of_rank);
    any_stopped = any_stopped || was_stopped;
  }
  pull();
  send_buffers(*module_);
  return any_stopped ? last : end_batch_;
}

void ParameterServer::leave_out_workers() {
  exchange_ = ranks().world_size() > 1 ? ranks().make_exchange() : nullptr;
  if (is_server()) server().change_workers(ranks().world_size(), exchange_);
}

void ParameterServer::restart_steps(bool alone) {
  if (alone && served_ != nullptr)
    throw ConfigError(
        fmt::format("batch_size_finder does not work with strategy '{}', whose ranks cannot run a step alone and so "
                    "cannot step back together",
                    name()));
}

void ParameterServer::teardown() {
  // After a failure threads may wait for what never comes.
  if (in_round_ && exchange_ != nullptr) exchange_->abort("the call has ended");
  in_round_ = false;
  server_.reset();
  stepping_optimizer_.reset();
  if (ranks().start_method() != StartMethod::kSubprocess) {
    exchange_.reset();
    store_.reset();
    rounds_ = 0;  // as on the ranks that the next call makes
  }
  known_ = nullptr;
  values_.clear();
  hold();
  served_parts_ = {};
  served_.reset();
  outgoing_.clear();
  incoming_.clear();
  module_ = nullptr;
  RankedStrategy::teardown();
}

}  // namespace levin
