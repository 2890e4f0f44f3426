#include <levin/strategies/ddp/ddp.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/single_process.h>
#include <levin/core/interfaces/module.h>
#include <levin/strategies/comm/c10d_collective.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/c10d_store.h>
#include <levin/strategies/comm/rendezvous.h>
#include <levin/strategies/comm/shared_memory_team.h>
#include <levin/strategies/ddp/communication_hooks.h>
#include <levin/strategies/ddp/gradient_reducer.h>
#include <levin/strategies/ddp/job_store.h>
#include <levin/strategies/ddp/model_agreement.h>
#include <levin/strategies/ddp/sync_batch_norm.h>
#include <levin/strategies/environments/cluster_environments.h>
#include <levin/strategies/environments/local_environment.h>
#include <levin/strategies/launchers/fork_launcher.h>
#include <levin/strategies/launchers/in_process_launcher.h>
#include <levin/strategies/launchers/lifeline.h>
#include <levin/strategies/launchers/subprocess_launcher.h>
#include <levin/strategies/launchers/thread_launcher.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <cmath>
#include <exception>

namespace levin {
namespace {

constexpr double kBytesPerMib = 1 << 20;

/// Sets of parameters, toggled in turn, of which each keeps its buckets.
constexpr size_t kMostManualReducers = 4;

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

bool is_consequence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RankFailedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Runs backward with the reduction of gradients in it; what communication throws becomes an Error of "comm", what
/// user code throws stays as it is.
template <class Backward>
void with_communication_errors(Backward&& backward) {
  try {
    backward();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (!is_communication_error(error)) throw;
    throw Error("comm", fmt::format("combining gradients failed: {}", c10d_message(error)));
  }
}

}  // namespace

void DdpOptions::describe(Schema<DdpOptions>& schema) {
  using O = DdpOptions;
  schema.field("bucket_cap_mb", &O::bucket_cap_mb, "MiB of gradients that are combined at once").above(0);
  schema
      .field("first_bucket_cap_mb", &O::first_bucket_cap_mb,
             "MiB of the first bucket, a small one so that communication starts early")
      .above(0);
  schema.field("find_unused_parameters", &O::find_unused_parameters,
               "the loss may leave out parameters, other ones at each step");
  schema.field("static_graph", &O::static_graph, "every step uses the same parameters in the same way");
  schema.field("broadcast_buffers", &O::broadcast_buffers,
               "rank 0's buffers (running statistics) go to all ranks before each step");
  schema
      .field("gradient_compression", &O::gradient_compression,
             "gradients travel in half the bytes, as float16 or bfloat16")
      .one_of(gradient_compressions());
  schema
      .field("backend", &O::backend, "what carries tensors; auto: nccl for CUDA, shared_memory on one host, else gloo")
      .one_of({"auto", "gloo", "nccl", "shared_memory"});
  schema.field("timeout", &O::timeout, "seconds that a rank waits for the others in a collective").above(0);
  schema.field("start_timeout", &O::start_timeout, "seconds that ranks wait for each other at the start").above(0);
  schema
      .field("stall_report", &O::stall_report, "seconds in one collective after which a report says where each rank is")
      .above(0);
  schema.field("scale_lr", &O::scale_lr, "multiply learning rates by the number of ranks, or by its square root")
      .one_of({"none", "linear", "sqrt"});
}

struct Ddp::Shared {
  c10::intrusive_ptr<c10d::Store> store;  ///< of thread ranks; of forks, what this process serves for them
  std::shared_ptr<SharedMemoryTeam> team;
};

Ddp::Ddp(const Options& options) : options_(options), environment_(std::make_unique<LocalEnvironment>()) {}

Ddp::~Ddp() = default;

StrategyCapabilities Ddp::capabilities() const {
  return {.several_devices = true, .several_nodes = ranks() == Ranks::kProcesses};
}

int64_t Ddp::world_size() const { return environment_->world_size(); }

std::chrono::milliseconds Ddp::timeout() const { return to_milliseconds(options_.timeout); }

// ---- Which ranks there are.

void Ddp::prepare(const StrategySetup& setup) {
  if (ranks() == Ranks::kProcesses)
    find_processes(setup);
  else
    find_local_ranks(setup);
}

void Ddp::find_processes(const StrategySetup& setup) {
  if (launcher_ != nullptr) return;  // the processes live as long as the program
  const auto devices = static_cast<int64_t>(setup.devices.size());
  if (auto launched = detect_environment()) {
    watch_lifeline();
    // One device under a launcher is one for each of its ranks.
    if (setup.devices_are_given && devices > 1) check_agreement(*launched, setup.num_nodes, devices);
    if (setup.num_nodes > 1) check_agreement(*launched, setup.num_nodes, launched->local_world_size());
    environment_ = std::move(launched);
    log::set_process_rank(environment_->rank(), environment_->world_size());
    launcher_ = std::make_unique<InProcessLauncher>(environment_->local_rank());
    return;
  }
  if (setup.num_nodes > 1)
    throw ConfigError(
        fmt::format("trainer.num_nodes is {}, but no launcher has started ranks on the other hosts; hint: start the "
                    "program with torchrun, srun or mpirun (docs/launchers.md)",
                    setup.num_nodes));
  ClusterPlace place{.world_size = devices, .local_world_size = devices};
  if (devices == 1) {
    launcher_ = std::make_unique<InProcessLauncher>();
  } else {
    place.main_port = JobStore::instance().serve(to_milliseconds(options_.start_timeout));
    launcher_ = std::make_unique<SubprocessLauncher>(
        SubprocessLauncherOptions{.place = place, .on_death = [this](int64_t rank, const std::string& description) {
                                    if (control_plane_ != nullptr) control_plane_->report_gone(rank, description);
                                  }});
  }
  environment_ = std::make_unique<LocalEnvironment>("Levin's own processes", place);
}

void Ddp::find_local_ranks(const StrategySetup& setup) {
  const auto count = static_cast<int64_t>(setup.devices.size());
  const auto launched = detect_environment();
  if (launched != nullptr && launched->world_size() > 1)
    throw ConfigError(fmt::format("strategy '{}' starts its own ranks, but {} has started {}; hint: strategy: ddp",
                                  name(), launched->name(), launched->world_size()));
  ClusterPlace place{.world_size = count, .local_world_size = count};
  launcher_.reset();
  shared_.reset();  // and with it the store of the last call
  shared_ = std::make_shared<Shared>();
  if (count == 1) {
    launcher_ = std::make_unique<InProcessLauncher>();
  } else if (ranks() == Ranks::kForks) {
    const auto port = std::make_shared<ReservedPort>();
    place.main_port = port->port();
    place.external_store = true;
    launcher_ = std::make_unique<ForkLauncher>(ForkLauncherOptions{
        .num_ranks = count,
        .after_fork = [this, port] { shared_->store = port->serve(to_milliseconds(options_.start_timeout)).store; },
        .is_consequence = is_consequence});
  } else {
    prepare_c10d_environment();
    shared_->store = make_thread_store(to_milliseconds(options_.start_timeout));
    if (setup.devices.front().is_cpu() && (options_.backend == "auto" || options_.backend == "shared_memory"))
      shared_->team = make_thread_team(count);
    launcher_ = std::make_unique<ThreadLauncher>(
        ThreadLauncherOptions{.num_ranks = count,
                              .on_error =
                                  [shared = shared_](int64_t rank, const std::exception_ptr& error) {
                                    if (shared->team == nullptr || is_consequence(error)) return;
                                    shared->team->abort(fmt::format("[shared_memory] rank {} failed", rank));
                                  },
                              .is_consequence = is_consequence});
  }
  environment_ = std::make_unique<LocalEnvironment>(
      ranks() == Ranks::kForks ? "Levin's forked processes" : "Levin's threads", place);
}

Launcher& Ddp::launcher() {
  LEVIN_CHECK(launcher_ != nullptr, "prepare was not called");
  return *launcher_;
}

void Ddp::enter_rank(int64_t local_rank) {
  if (ranks() == Ranks::kProcesses || local_rank == environment_->local_rank()) return;
  ClusterPlace place = environment_->place();
  place.rank = place.local_rank = local_rank;
  environment_ = std::make_unique<LocalEnvironment>(environment_->name(), place);
}

void Ddp::join_threads_of(const Ddp& first, int64_t local_rank) {
  shared_ = first.shared_;
  ClusterPlace place = first.environment_->place();
  place.rank = place.local_rank = local_rank;
  environment_ = std::make_unique<LocalEnvironment>(first.environment_->name(), place);
}

// ---- Joining them.

at::Device Ddp::device_of_rank(const StrategySetup& setup) const {
  const auto local_rank = static_cast<size_t>(environment_->local_rank());
  if (local_rank < setup.devices.size()) return setup.devices[local_rank];
  const at::Device& first = setup.devices.front();
  // A launcher has started more ranks than devices were named: each takes the device of its number.
  return first.is_cpu() ? first : at::Device(first.type(), static_cast<at::DeviceIndex>(local_rank));
}

c10::intrusive_ptr<c10d::Store> Ddp::connect() const {
  const auto start_timeout = to_milliseconds(options_.start_timeout);
  switch (ranks()) {
    case Ranks::kThreads:
      return shared_->store;
    case Ranks::kForks:
      return connect_store(environment_->place(), start_timeout);
    default:
      return JobStore::instance().join(environment_->place(), start_timeout);
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> Ddp::make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const ProcessGroupOptions& options) {
  return make_process_group(store, options);
}

void Ddp::setup_environment(const StrategySetup& setup) {
  whereabouts_ = setup.whereabouts;
  sync_batchnorm_ = setup.sync_batchnorm;
  device_ = device_of_rank(setup);
  if (world_size() == 1) {
    if (collective_ == nullptr) collective_ = make_single_process_collective();
    return;
  }
  const WaitingIn waiting(whereabouts_, "joining the other ranks");
  if (collective_ == nullptr) {
    store_ = connect();
    const ClusterPlace& place = environment_->place();
    const ProcessGroupOptions group_options{.backend = options_.backend,
                                            .device = device_,
                                            .rank = place.rank,
                                            .world_size = place.world_size,
                                            .one_host = place.local_world_size == place.world_size,
                                            .main_address = place.main_address,
                                            .timeout = timeout(),
                                            .thread_team = shared_ != nullptr ? shared_->team : nullptr};
    const auto store = c10::make_intrusive<c10d::PrefixStore>("group", store_);
    group_ = make_group(store, group_options);
    collective_ = std::make_shared<C10dCollective>(
        group_, store, group_options, whereabouts_,
        [this](const auto& sub_store, const auto& sub_options) { return make_group(sub_store, sub_options); });
    if (place.rank == 0)
      log::rank_zero_info(fmt::format("{} ranks, started by {}, {} on {}", place.world_size, environment_->name(),
                                      resolve_backend(group_options), device_.str()));
  }
  start_control_plane(setup);
}

void Ddp::start_control_plane(const StrategySetup& setup) {
  const ClusterPlace& place = environment_->place();
  ControlPlaneOptions control;
  control.rank = place.rank;
  control.world_size = place.world_size;
  control.prefix = fmt::format("call-{}/", calls_++);
  control.store_rank = ranks() == Ranks::kProcesses && !place.external_store ? 0 : -1;
  control.stall_after = to_milliseconds(options_.stall_report);
  control.abort = [collective = std::weak_ptr<Collective>(collective_)](const std::string& reason) {
    if (const auto alive = collective.lock()) alive->abort(reason);
  };
  control_plane_ =
      std::make_unique<ControlPlane>(C10dStore(c10::make_intrusive<c10d::PrefixStore>("control", store_)).clone(),
                                     std::move(control), *setup.whereabouts);
}

Collective& Ddp::collective() {
  LEVIN_CHECK(collective_ != nullptr, "setup_environment was not called");
  return *collective_;
}

ControlPlane* Ddp::control_plane() { return control_plane_.get(); }

void Ddp::teardown() {
  control_plane_.reset();
  restart_steps(/*alone=*/false);
  parameters_.clear();
  module_ = nullptr;
  if (ranks() == Ranks::kProcesses) return;
  collective_.reset();
  group_.reset();
  store_.reset();
}

void Ddp::restart_steps(bool alone) {
  alone_ = alone;
  reducers_.clear();
}

// ---- The model and its steps.

void Ddp::setup_module(Module& module) {
  module.to(device_);
  module_ = &module;
  parameters_ = named_unique_parameters(module);
  has_buffers_ = !module.buffers().empty();
  reducers_.clear();
  if (world_size() == 1) return;
  require_same_model(module, *collective_);
  broadcast_model(module, group_);
}

std::unique_ptr<c10d::CommHookInterface> Ddp::communication_hook(const c10::intrusive_ptr<c10d::ProcessGroup>&) {
  return nullptr;
}

GradientReducer& Ddp::reducer(Module& module, const StepWindow& window, bool manual) {
  const auto fitting = std::find_if(reducers_.begin(), reducers_.end(),
                                    [this](const auto& reducer) { return reducer->fits(parameters_); });
  if (fitting != reducers_.end()) {
    std::rotate(reducers_.begin(), fitting, fitting + 1);
  } else {
    // Toggling makes the parameters of one optimizer after the other those that are trained.
    if (reducers_.size() >= (manual ? kMostManualReducers : 1)) reducers_.pop_back();
    parameters_ = named_unique_parameters(module);
    GradientReducerOptions reduction;
    reduction.bucket_bytes = static_cast<int64_t>(options_.bucket_cap_mb * kBytesPerMib);
    reduction.first_bucket_bytes = static_cast<int64_t>(options_.first_bucket_cap_mb * kBytesPerMib);
    // Each of several losses reaches some of the parameters.
    reduction.find_unused_parameters = options_.find_unused_parameters || manual;
    reduction.may_find_none_unused = !options_.find_unused_parameters;
    reduction.static_graph = options_.static_graph && !manual;
    reduction.counts_participants = window.counts_participants;
    reduction.configure = [this](c10d::Reducer& made) {
      if (auto hook = communication_hook(group_))
        made.register_comm_hook(std::move(hook));
      else
        compress_gradients(made, group_, options_.gradient_compression);
    };
    reducers_.insert(reducers_.begin(), std::make_unique<GradientReducer>(parameters_, group_, std::move(reduction)));
  }
  return *reducers_.front();
}

void Ddp::send_buffers(Module& module) {
  if (!options_.broadcast_buffers || !has_buffers_) return;
  const WaitingIn waiting(whereabouts_, "broadcast of buffers");
  with_communication_errors([&] { broadcast_buffers(module, group_); });
}

StepOutput Ddp::forward_backward(const Batch& batch, StepPhases& phases, const StepWindow& window) {
  if (world_size() == 1 || alone_) {
    StepOutput output = forward(batch, phases);
    if (!output.has_loss()) return output;
    phases.before_backward(output);
    phases.backward(output);
    phases.after_backward();
    return output;
  }
  GradientReducer& gradients = reducer(phases.module(), window, /*manual=*/false);
  if (window.sync) gradients.before_forward();
  send_buffers(phases.module());
  StepOutput output = [&] {
    const SyncBatchNormScope statistics(sync_batchnorm_ ? collective_ : nullptr);
    return forward(batch, phases);
  }();
  if (!output.has_loss() && !window.sync) return output;
  // A batch that this rank alone skips counts as zero: the others wait for its part.
  StepOutput start = output.has_loss() ? output : StepOutput(gradients.zero_loss());
  phases.before_backward(start);
  start.loss() = gradients.before_backward(start.loss(), window.sync, window);
  {
    const WaitingIn waiting(window.sync ? whereabouts_ : nullptr, "reduction of gradients");
    with_communication_errors([&] { phases.backward(start); });
  }
  phases.after_backward();
  return output;
}

Strategy::Participation Ddp::participation() {
  return reducers_.empty() ? Participation{} : reducers_.front()->participation();
}

StepOutput Ddp::manual_step(const Batch& batch, StepPhases& phases) {
  if (world_size() == 1 || alone_) return phases.forward(batch);
  send_buffers(phases.module());
  const SyncBatchNormScope statistics(sync_batchnorm_ ? collective_ : nullptr);
  return phases.forward(batch);
}

void Ddp::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (world_size() == 1 || alone_) return Strategy::manual_backward(loss, options);
  GradientReducer& gradients = reducer(*module_, {}, /*manual=*/true);
  if (options.sync_grad) gradients.before_forward();
  const at::Tensor start = gradients.before_backward(loss, options.sync_grad, {});
  const WaitingIn waiting(options.sync_grad ? whereabouts_ : nullptr, "reduction of gradients");
  with_communication_errors([&] { Strategy::manual_backward(start, options); });
}

double Ddp::learning_rate_scale() const {
  const auto ranks = static_cast<double>(world_size());
  if (options_.scale_lr == "linear") return ranks;
  return options_.scale_lr == "sqrt" ? std::sqrt(ranks) : 1;
}

std::shared_ptr<Strategy> DdpThreads::for_thread_rank(int64_t local_rank) {
  if (!can_rebuild())
    throw Error("ddp_threads",
                "the strategy was made in a way that cannot be repeated for further ranks; hint: make "
                "it with levin::make, or name it in YAML");
  auto sibling = std::dynamic_pointer_cast<DdpThreads>(rebuild());
  LEVIN_CHECK(sibling != nullptr, "a rebuilt strategy is of another class");
  sibling->join_threads_of(*this, local_rank);
  return sibling;
}

}  // namespace levin
