#include <levin/strategies/ranks/rank_group.h>

#include <levin/core/base/error.h>
#include <levin/core/base/lifeline.h>
#include <levin/core/base/log.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/hang_watch.h>
#include <levin/core/comm/single_process.h>
#include <levin/strategies/comm/c10d_collective.h>
#include <levin/strategies/comm/c10d_store.h>
#include <levin/strategies/comm/process_group.h>
#include <levin/strategies/comm/rendezvous.h>
#include <levin/strategies/comm/shared_memory_team.h>
#include <levin/strategies/comm/watched_store.h>
#include <levin/strategies/environments/cluster_environments.h>
#include <levin/strategies/environments/local_environment.h>
#include <levin/strategies/launchers/fork_launcher.h>
#include <levin/strategies/launchers/in_process_launcher.h>
#include <levin/strategies/launchers/rank_report.h>
#include <levin/strategies/launchers/subprocess_launcher.h>
#include <levin/strategies/launchers/thread_launcher.h>
#include <levin/strategies/ranks/job_store.h>
#include <levin/strategies/ranks/local_device.h>
#include <levin/strategies/ranks/rank_watch.h>
#include <levin/strategies/ranks/roll_call.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

/// For the end of the process that started this one to be noticed.
constexpr std::chrono::seconds kLifelinePatience{2};
/// Of the control planes' keys in the ranks' store.
constexpr const char* kControlPrefix = "control";
/// The group of a rank without others.
Collective& alone() {
  static const std::shared_ptr<Collective> group = make_single_process_collective();
  return *group;
}

std::string call_prefix(int64_t call) { return fmt::format("call-{}/", call); }

/// Ends the call on all ranks that share this store, which is that of one call alone, with a failure. Where the one
/// that failed has told of it itself, that stands.
void tell_all_ranks(const c10::intrusive_ptr<c10d::Store>& store, const RankFailure& failure) {
  call_off_rendezvous(store, failure);
  C10dStore control(c10::make_intrusive<c10d::PrefixStore>(kControlPrefix, store));
  publish_failure(control, call_prefix(0), failure);
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

/// Of the error of a rank that is a thread.
std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return RankReport::of_current_exception().message;
  }
}

/// Throws ConfigError where ranks share a device and cannot.
void check_shared_devices(const std::vector<at::Device>& devices, const RankOptions& options) {
  if (devices.empty() || devices.front().is_cpu()) return;
  if (options.start_method == StartMethod::kThread) return refuse_shared_devices(devices, kThreadsShareNone);
  const std::string backend = resolve_backend({.backend = options.backend, .device = devices.front()});
  if (backend == "gloo") return;
  refuse_shared_devices(devices, fmt::format("backend '{}' needs a device of its own for each rank; hint: "
                                             "trainer.strategy.backend: gloo lets ranks share one, to try several "
                                             "ranks on a single device",
                                             backend));
}

}  // namespace

struct RankGroup::Shared {
  c10::intrusive_ptr<c10d::Store> store;  ///< of thread ranks; of forks, what this process serves for them
  std::shared_ptr<SharedMemoryTeam> team;
};

RankGroup::RankGroup(std::string family, RankOptions options)
    : family_(std::move(family)),
      options_(std::move(options)),
      environment_(std::make_unique<LocalEnvironment>()),
      watch_(std::make_shared<RankWatch>()) {}

RankGroup::~RankGroup() { watch_->detach(); }

std::string RankGroup::strategy_name() const {
  switch (options_.start_method) {
    case StartMethod::kThread:
      return family_ + "_threads";
    case StartMethod::kFork:
      return family_ + "_spawn";
    default:
      return family_;
  }
}

int64_t RankGroup::world_size() const { return environment_->world_size(); }

// ---- Which ranks there are.

void RankGroup::prepare(const StrategySetup& setup, const std::string& strategy) {
  check_shared_devices(setup.devices, options_);
  if (options_.start_method == StartMethod::kSubprocess)
    find_processes(setup);
  else
    find_local_ranks(setup, strategy);
  watch_->begin_joining();
}

void RankGroup::find_processes(const StrategySetup& setup) {
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
        SubprocessLauncherOptions{.place = place, .on_end = [watch = watch_](int64_t rank, const ProcessEnd& end) {
                                    // Other signals come from the program itself, or ask all ranks to end.
                                    if (end.signal() == SIGKILL && watch->lose(rank, end.describe())) return true;
                                    watch->rank_ended(rank, end.describe(), /*in_good_order=*/!end.failed());
                                    return false;
                                  }});
  }
  environment_ = std::make_unique<LocalEnvironment>("Levin's own processes", place);
}

void RankGroup::find_local_ranks(const StrategySetup& setup, const std::string& strategy) {
  const auto count = static_cast<int64_t>(setup.devices.size());
  const auto launched = detect_environment();
  if (launched != nullptr && launched->world_size() > 1)
    throw ConfigError(
        fmt::format("strategy '{}' starts its own ranks, but {} has started {}; hint: leave start_method out "
                    "(strategy: {})",
                    strategy, launched->name(), launched->world_size(), family_));
  ClusterPlace place{.world_size = count, .local_world_size = count};
  launcher_.reset();
  shared_.reset();  // and with it the store of the last call
  shared_ = std::make_shared<Shared>();
  calls_ = groups_ = exchanges_ = meetings_ = 0;  // as those of the ranks that are about to be made
  members_.clear();
  const auto start_timeout = to_milliseconds(options_.start_timeout);
  if (count == 1) {
    launcher_ = std::make_unique<InProcessLauncher>();
  } else if (options_.start_method == StartMethod::kFork) {
    const auto port = std::make_shared<ReservedPort>();
    place.main_port = port->port();
    place.external_store = true;
    launcher_ = std::make_unique<ForkLauncher>(ForkLauncherOptions{
        .num_ranks = count,
        .after_fork = [shared = shared_, port, start_timeout] { shared->store = port->serve(start_timeout).store; },
        .on_failure = [shared = shared_](const RankFailure& failure) { tell_all_ranks(shared->store, failure); },
        .is_consequence = is_consequence});
  } else {
    prepare_c10d_environment();
    shared_->store = make_thread_store(start_timeout);
    if (setup.devices.front().is_cpu() && (options_.backend == "auto" || options_.backend == "shared_memory"))
      shared_->team = make_thread_team(count);
    launcher_ = std::make_unique<ThreadLauncher>(
        ThreadLauncherOptions{.num_ranks = count,
                              .on_error =
                                  [shared = shared_](int64_t rank, const std::exception_ptr& error) {
                                    if (is_consequence(error)) return;
                                    tell_all_ranks(shared->store, {.rank = rank, .message = message_of(error)});
                                    if (shared->team == nullptr) return;
                                    shared->team->abort(fmt::format("[shared_memory] rank {} failed", rank));
                                  },
                              .is_consequence = is_consequence});
  }
  environment_ = std::make_unique<LocalEnvironment>(
      options_.start_method == StartMethod::kFork ? "Levin's forked processes" : "Levin's threads", place);
}

Launcher& RankGroup::launcher() {
  LEVIN_CHECK(launcher_ != nullptr, "prepare was not called");
  return *launcher_;
}

void RankGroup::enter(int64_t local_rank) {
  if (options_.start_method == StartMethod::kSubprocess || local_rank == environment_->local_rank()) return;
  ClusterPlace place = environment_->place();
  place.rank = place.local_rank = local_rank;
  environment_ = std::make_unique<LocalEnvironment>(environment_->name(), place);
}

void RankGroup::join_threads_of(const RankGroup& first, int64_t local_rank) {
  shared_ = first.shared_;
  ClusterPlace place = first.environment_->place();
  place.rank = place.local_rank = local_rank;
  environment_ = std::make_unique<LocalEnvironment>(first.environment_->name(), place);
}

// ---- Joining them.

WaitingInVain RankGroup::in_vain() const {
  return [watch = watch_, rank = launched_.rank] { return watch->failure(rank); };
}

c10::intrusive_ptr<c10d::Store> RankGroup::connect() const {
  const auto start_timeout = to_milliseconds(options_.start_timeout);
  switch (options_.start_method) {
    case StartMethod::kThread:
      return shared_->store;
    case StartMethod::kFork:
      return connect_store(environment_->place(), start_timeout, in_vain());
    default:
      return JobStore::instance().join(environment_->place(), start_timeout, in_vain());
  }
}

void RankGroup::join(const StrategySetup& setup, const ProcessGroupFactory& make_group) {
  rank_status_ = setup.rank_status;
  device_ = device_of_local_rank(setup.devices, environment_->local_rank());
  if (members_.empty()) {
    launched_ = environment_->place();
    members_.resize(static_cast<size_t>(launched_.world_size));
    std::iota(members_.begin(), members_.end(), int64_t{0});
    make_group_ = make_group;
  }
  if (launched_.world_size == 1) {
    if (collective_ == nullptr) collective_ = make_single_process_collective();
    hang_watch_ = make_hang_watch(rank_status_, options_.hang_timeout);
    return;
  }
  const WaitingIn waiting(rank_status_, "start-up");
  if (collective_ == nullptr) store_ = connect();
  // First of all: while the group is made, ranks can end as well.
  start_control_plane(setup);
  if (collective_ == nullptr) join_group();
  watch_->attach(collective_);
  control_plane_->throw_if_failed();  // nothing was there to be aborted before
  watch_->end_joining();
}

void RankGroup::join_group() {
  const ClusterPlace& place = environment_->place();
  const ProcessGroupOptions group_options{.backend = options_.backend,
                                          .device = device_,
                                          .rank = place.rank,
                                          .world_size = place.world_size,
                                          .one_host = place.local_world_size == place.world_size,
                                          .main_address = place.main_address,
                                          .timeout = to_milliseconds(options_.timeout),
                                          .thread_team = shared_ != nullptr ? shared_->team : nullptr};
  const auto watched = make_watched_store(store_, in_vain());
  const auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("group{}", groups_++), watched);
  group_ = make_group_(store, group_options);
  collective_ = std::make_shared<C10dCollective>(group_, store, group_options, rank_status_, make_group_);
  if (place.rank == 0)
    log::rank_zero_info(fmt::format("{} ranks, started by {}, {} on {}", place.world_size, environment_->name(),
                                    resolve_backend(group_options), device_.str()));
}

void RankGroup::start_control_plane(const StrategySetup& setup) {
  // By the numbers of the launcher, which tells of ranks that end.
  const ClusterPlace& place = launched_;
  ControlPlaneOptions control;
  control.rank = place.rank;
  control.world_size = place.world_size;
  control.prefix = call_prefix(calls_++);
  control.store_rank = options_.start_method == StartMethod::kSubprocess && is_served_by_rank_zero(place) ? 0 : -1;
  control.start_timeout = to_milliseconds(options_.timeout);  // ranks may come late to a call that is not the first
  control.stall_after = to_milliseconds(options_.stall_report);
  control.hang_after = to_milliseconds(options_.hang_timeout);
  control.role_of = role_of_;
  control.abort = [watch = watch_](const std::string& reason) { watch->abort(reason); };
  const auto store = c10::make_intrusive<c10d::PrefixStore>(kControlPrefix, store_);
  control_plane_ = std::make_unique<ControlPlane>(C10dStore(store).clone(), std::move(control), *setup.rank_status);
  watch_->attach(*control_plane_);
  speak_for_parent();
  if (place.rank > 0) return;
  for (int64_t rank = 0; rank < place.world_size; ++rank)
    if (watch_->is_lost(rank)) control_plane_->leave_out(rank, "");  // in a call before
}

bool RankGroup::speaks_for_parent() const {
  return options_.start_method == StartMethod::kSubprocess && std::getenv(Lifeline::kVariable) != nullptr &&
         members_.size() > 1 && launched_.rank == members_[1];
}

void RankGroup::speak_for_parent() const {
  if (!speaks_for_parent()) return;
  set_words_on_parents_end(fmt::format("[levin rank {}] error: rank 0 is gone, and the ranks that it started end{}\n",
                                       launched_.rank, role_of_ ? role_of_(0) : ""));
}

void RankGroup::bear_losses(int64_t first) { watch_->bear_losses(first); }

std::vector<std::string> RankGroup::meet(const std::string& says) {
  C10dStore store(c10::make_intrusive<c10d::PrefixStore>(fmt::format("meeting{}", meetings_++),
                                                         make_watched_store(store_, in_vain())));
  RollCall roll = RollCall::take(store, *watch_, launched_.rank, members_, says, to_milliseconds(options_.timeout));
  if (roll.present.size() < members_.size()) regroup(roll.present);
  return std::move(roll.answers);
}

void RankGroup::regroup(const std::vector<int64_t>& present) {
  const WaitingIn waiting(rank_status_, "a group without the ranks that are gone");
  const auto own = std::find(present.begin(), present.end(), launched_.rank);
  LEVIN_CHECK(own != present.end(), "a rank that was killed does not come here");
  members_ = present;
  ClusterPlace place = launched_;
  place.rank = own - present.begin();
  place.world_size = place.local_world_size = std::ssize(present);
  environment_ = std::make_unique<LocalEnvironment>(environment_->name(), place);
  mesh_ = DeviceMesh({{std::string(DeviceMesh::kReplicate), place.world_size}}, place.world_size);
  subgroups_.clear();
  collective_.reset();
  group_.reset();
  if (place.world_size == 1)
    collective_ = make_single_process_collective();
  else
    join_group();
  watch_->attach(collective_);
  control_plane_->throw_if_failed();
  speak_for_parent();
}

std::shared_ptr<Collective> RankGroup::make_exchange() {
  const ClusterPlace& place = environment_->place();
  // A rank may be silent for as long as it computes or validates: what ends a wait is a failure.
  constexpr std::chrono::hours kNoTimeout{24 * 365};
  const ProcessGroupOptions exchange{.backend = "gloo",
                                     .device = at::kCPU,
                                     .rank = place.rank,
                                     .world_size = place.world_size,
                                     .one_host = place.local_world_size == place.world_size,
                                     .main_address = place.main_address,
                                     .timeout = kNoTimeout};
  const auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("exchange{}", exchanges_++),
                                                            make_watched_store(store_, in_vain()));
  auto made = std::make_shared<C10dCollective>(make_process_group(store, exchange), store, exchange);
  watch_->attach(made);
  return made;
}

Collective& RankGroup::collective() {
  if (!forbidden_.empty()) throw ConfigError(forbidden_);
  if (collective_ != nullptr) return *collective_;
  // Threads and forks end with the call: between two calls this rank is alone.
  LEVIN_CHECK(options_.start_method != StartMethod::kSubprocess, "setup_environment was not called");
  return alone();
}

void RankGroup::lay_out(DeviceMesh mesh) {
  if (world_size() > 1) {
    const std::vector<std::string> meshes = collective().gather_bytes(mesh.text());
    for (size_t rank = 1; rank < meshes.size(); ++rank)
      if (meshes[rank] != meshes.front())
        throw ConfigError(
            fmt::format("the ranks' strategies differ: rank 0 has the mesh '{}', rank {} '{}'; hint: give "
                        "all ranks the same trainer.strategy",
                        meshes.front(), rank, meshes[rank]));
  }
  mesh_ = std::move(mesh);
  for (const auto& [dimension, size] : mesh_->dimensions()) group_along({dimension});
}

const DeviceMesh& RankGroup::mesh() const {
  static const DeviceMesh alone({}, 1);
  return mesh_ ? *mesh_ : alone;
}

std::shared_ptr<Collective> RankGroup::group_along(const std::vector<std::string_view>& dimensions) {
  int64_t size = 1;
  for (const std::string_view dimension : dimensions) size *= mesh().size(dimension);
  if (size == 1) return nullptr;
  if (size == world_size()) return collective_;
  std::shared_ptr<Collective>& made = subgroups_[fmt::format("{}", fmt::join(dimensions, " "))];
  if (made == nullptr) made = make_subgroup(dimensions);
  return made;
}

Collective& RankGroup::group(std::string_view dimension) {
  const std::shared_ptr<Collective> along = group_along({dimension});
  return along == nullptr ? alone() : *along;
}

std::shared_ptr<Collective> RankGroup::make_subgroup(const std::vector<std::string_view>& dimensions) {
  std::shared_ptr<Collective> own;
  // Every rank calls for every group.
  for (const std::vector<int64_t>& members : mesh().groups(dimensions))
    if (auto made = collective().subgroup(members)) own = std::move(made);
  return own;
}

void RankGroup::part() {
  // Where rank 0 is gone, the lifeline is about to end this process: not before it has spoken.
  if (control_plane_ != nullptr && speaks_for_parent()) {
    const auto failure = control_plane_->failure_of_other(std::chrono::seconds(0));
    if (failure && failure->gone && failure->rank == 0) std::this_thread::sleep_for(kLifelinePatience);
  }
  if (control_plane_ != nullptr) control_plane_->leave();
  watch_->detach();
  control_plane_.reset();
  hang_watch_.reset();
  forbidden_.clear();
  mesh_.reset();
  subgroups_.clear();
  if (options_.start_method == StartMethod::kSubprocess) return;
  collective_.reset();
  group_.reset();
  store_.reset();
}

}  // namespace levin
