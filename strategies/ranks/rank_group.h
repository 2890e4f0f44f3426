#pragma once

#include <levin/core/comm/device_mesh.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/comm/process_group.h>
#include <levin/strategies/comm/watched_store.h>
#include <levin/strategies/ranks/rank_options.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

class HangWatch;
class RankWatch;

/// The ranks of a strategy: which there are, how they start, find each other and part. With one rank nothing is started
/// and every collective is the identity.
class RankGroup final : public Ranks {
 public:
  /// `family`: the name of the strategy where ranks are processes, which works under a launcher.
  RankGroup(std::string family, RankOptions options);
  ~RankGroup() override;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  /// Name of the family's strategy with this start method: ddp, ddp_spawn, ddp_threads.
  std::string strategy_name() const;
  StartMethod start_method() const { return options_.start_method; }

  /// See Strategy::prepare. `strategy`: as messages name it.
  void prepare(const StrategySetup& setup, const std::string& strategy);
  Launcher& launcher() override;
  ClusterEnvironment& environment() override { return *environment_; }
  void enter(int64_t local_rank) override;
  bool are_threads() const override { return options_.start_method == StartMethod::kThread; }
  /// Makes this object that of a thread rank beside `first`.
  void join_threads_of(const RankGroup& first, int64_t local_rank);
  /// Joins the other ranks, which come to it as well. `make_group` makes the process group of all ranks, and those of
  /// sub-groups.
  void join(const StrategySetup& setup, const ProcessGroupFactory& make_group);
  /// Until the next meet(), a rank from `first` on that is killed ends nothing, where Levin itself started the ranks as
  /// processes. Every rank calls it.
  void bear_losses(int64_t first);
  /// Waits for all ranks, and returns what each of them says. Those that were killed meanwhile are not waited for: the
  /// others are numbered anew in their order, and environment, world_size, collective and process_group are theirs.
  /// Every rank calls it.
  std::vector<std::string> meet(const std::string& says);
  /// Sets what messages say of a rank that is gone behind how it ended; before join.
  void describe_roles(std::function<std::string(int64_t rank)> role_of) { role_of_ = std::move(role_of); }
  /// Ends a call, when nothing uses the process group any more.
  void part();

  /// Number of ranks that the job began with, killed ones included.
  int64_t launched_world_size() const { return members_.empty() ? world_size() : launched_.world_size; }
  /// Number of ranks, known from prepare on; what follows, from join on.
  int64_t world_size() const;
  const at::Device& device() const override { return device_; }
  Collective& collective() override;
  /// The collective, for those who keep it.
  const std::shared_ptr<Collective>& shared_collective() const { return collective_; }
  /// Lays the ranks out over a mesh, and makes the group along each of its dimensions. All ranks call it, after join.
  void lay_out(DeviceMesh mesh);
  const DeviceMesh& mesh() const override;
  Collective& group(std::string_view dimension) override;
  /// The ranks that differ from this one along these dimensions of the mesh alone; nullptr: there are no others. Made
  /// once; all ranks make it together.
  std::shared_ptr<Collective> group_along(const std::vector<std::string_view>& dimensions);
  /// Makes a further group of those along one dimension. All ranks call it.
  std::shared_ptr<Collective> make_group_along(std::string_view dimension) { return make_subgroup({dimension}); }
  /// Makes a further group of all ranks over Gloo, for sending and receiving on the CPU by any thread, that ends when a
  /// failure is known. All ranks call it, between join and part.
  std::shared_ptr<Collective> make_exchange();
  /// Makes collective() throw `why` while that is not empty: the ranks are not at the same place.
  void forbid_collectives(const std::string& why) { forbidden_ = why; }
  /// Process group of all ranks; null while there is one.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const { return group_; }
  ControlPlane* control_plane() const override { return control_plane_.get(); }
  /// Status of this rank, for WaitingIn.
  RankStatus* rank_status() const { return rank_status_; }

 private:
  /// What the ranks of this process share.
  struct Shared;

  void find_processes(const StrategySetup& setup);
  void find_local_ranks(const StrategySetup& setup, const std::string& strategy);
  WaitingInVain in_vain() const;
  c10::intrusive_ptr<c10d::Store> connect() const;
  void start_control_plane(const StrategySetup& setup);
  /// Whether this rank is the one that says it when rank 0 is gone, where that started the others, which end with it.
  bool speaks_for_parent() const;
  void speak_for_parent() const;
  void join_group();
  std::shared_ptr<Collective> make_subgroup(const std::vector<std::string_view>& dimensions);
  /// Makes the group of those members alone.
  void regroup(const std::vector<int64_t>& present);

  const std::string family_;
  const RankOptions options_;
  std::function<std::string(int64_t rank)> role_of_;
  std::unique_ptr<ClusterEnvironment> environment_;
  ClusterPlace launched_;         ///< of this rank among all that the job began with; from join on
  std::vector<int64_t> members_;  ///< those of them that are there, by their numbers then: they are the ranks now
  std::unique_ptr<Launcher> launcher_;
  std::shared_ptr<Shared> shared_;
  ProcessGroupFactory make_group_;
  std::shared_ptr<Collective> collective_;
  std::optional<DeviceMesh> mesh_;                                ///< of the call under way
  std::map<std::string, std::shared_ptr<Collective>> subgroups_;  ///< by their dimensions
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<RankWatch> watch_;
  std::unique_ptr<ControlPlane> control_plane_;
  std::unique_ptr<HangWatch> hang_watch_;  ///< in its place where there is one rank
  at::Device device_{at::kCPU};
  int64_t calls_ = 0;
  RankStatus* rank_status_ = nullptr;
  std::string forbidden_;  ///< see forbid_collectives
  // Which one it is, alike on all ranks, is part of the keys of each in the store.
  int64_t groups_ = 0;
  int64_t exchanges_ = 0;
  int64_t meetings_ = 0;
};

}  // namespace levin
