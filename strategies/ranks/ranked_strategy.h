#pragma once

#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/comm/process_group.h>
#include <levin/strategies/comm/watched_store.h>
#include <levin/strategies/ranks/rank_options.h>

#include <cstdint>
#include <memory>
#include <string>

namespace levin {

class RankWatch;

/// Base of the strategies that run a step on several ranks: which ranks there are, how they start, find each other and
/// part. What a step is, and who has which part of the model, is left to the derived class. Ranks are processes (those
/// that a launcher has started, or further runs of this program, which the first call starts), forks or threads. With
/// one rank nothing is started and every collective is the identity.
///
/// A family of strategies has a class for each kind of rank: the first with processes, and classes derived from it that
/// override only name() and ranks(). Thread ranks make the strategy again by its recipe (levin::make, or its name in
/// YAML). An override of setup_environment or teardown calls that of this class: in teardown at the end, when nothing
/// uses the process group any more.
class RankedStrategy : public Strategy {
 public:
  explicit RankedStrategy(RankOptions options);
  ~RankedStrategy() override;

  StrategyCapabilities capabilities() const override;
  void prepare(const StrategySetup& setup) override;
  Launcher& launcher() override;
  ClusterEnvironment& environment() override { return *environment_; }
  void enter_rank(int64_t local_rank) override;
  bool ranks_are_threads() const override { return ranks() == Ranks::kThreads; }
  std::shared_ptr<Strategy> for_thread_rank(int64_t local_rank) override;
  void setup_environment(const StrategySetup& setup) override;
  const at::Device& root_device() const override { return device_; }
  Collective& collective() override;
  ControlPlane* control_plane() override;
  void teardown() override;

 protected:
  /// How ranks come to be.
  enum class Ranks { kProcesses, kForks, kThreads };
  virtual Ranks ranks() const { return Ranks::kProcesses; }
  /// The name of this family's strategy whose ranks are processes, which works under a launcher.
  virtual std::string name_with_processes() const { return "ddp"; }
  /// The process group of all ranks; also called for sub-groups.
  virtual c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                            const ProcessGroupOptions& options);

  /// Known from prepare on; what follows, from setup_environment on.
  int64_t world_size() const;
  /// As collective(), for those who keep it.
  const std::shared_ptr<Collective>& shared_collective() const { return collective_; }
  /// Of all ranks; null while there is one.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const { return group_; }
  /// Of this rank, for WaitingIn.
  Whereabouts* whereabouts() const { return whereabouts_; }

 private:
  /// What the ranks of this process share.
  struct Shared;

  void find_processes(const StrategySetup& setup);
  void find_local_ranks(const StrategySetup& setup);
  /// Makes this object that of a thread rank beside `first`.
  void join_threads_of(const RankedStrategy& first, int64_t local_rank);
  at::Device device_of_rank(const StrategySetup& setup) const;
  WaitingInVain in_vain() const;
  c10::intrusive_ptr<c10d::Store> connect() const;
  void start_control_plane(const StrategySetup& setup);
  void join_group();

  const RankOptions options_;
  std::unique_ptr<ClusterEnvironment> environment_;
  std::unique_ptr<Launcher> launcher_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Collective> collective_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<RankWatch> watch_;
  std::unique_ptr<ControlPlane> control_plane_;
  at::Device device_{at::kCPU};
  int64_t calls_ = 0;
  Whereabouts* whereabouts_ = nullptr;
};

}  // namespace levin
