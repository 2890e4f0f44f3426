#pragma once

#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/ranks/rank_group.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace levin {

/// A strategy that runs a step on the ranks of a RankGroup, to which it hands what the trainer asks about them. What a
/// step is, and who has which part of the model, is left to the derived class. Thread ranks make the strategy again by
/// its init options (levin::make, or its name in YAML). An override of setup_environment or teardown calls that of this
/// class: in teardown at the end, when nothing uses the process group any more.
class RankedStrategy : public Strategy {
 public:
  RankedStrategy(const std::string& family, RankOptions options) : ranks_(family, std::move(options)) {}

  std::string name() const override { return ranks_.strategy_name(); }
  StrategyCapabilities capabilities() const override {
    return {.several_devices = true, .several_nodes = ranks_.start_method() == StartMethod::kSubprocess};
  }
  RankGroup& ranks() override { return ranks_; }
  void prepare(const StrategySetup& setup) override { ranks_.prepare(setup, name()); }
  std::shared_ptr<Strategy> for_thread_rank(int64_t local_rank) override;
  void setup_environment(const StrategySetup& setup) override;
  void teardown() override;

 protected:
  const RankGroup& rank_group() const { return ranks_; }
  /// Lays out the ranks of a call, as many as there are. Throws ConfigError where the options do not fit their number.
  virtual DeviceMesh make_mesh();
  /// Makes the process group of all ranks; also called for sub-groups.
  virtual c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                            const ProcessGroupOptions& options);

 private:
  RankGroup ranks_;
};

}  // namespace levin
