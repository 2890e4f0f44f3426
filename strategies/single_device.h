#pragma once

#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/ranks/single_rank.h>

#include <string>

namespace levin {

/// Runs on one device in one process: every collective is the identity.
class SingleDevice : public Strategy {
 public:
  std::string name() const override { return "single_device"; }
  Ranks& ranks() override { return rank_; }
  void setup_environment(const StrategySetup& setup) override;
  void setup_module(Module& module) override;
  GraphSupport graph_support() override;

 private:
  SingleRank rank_;
};

}  // namespace levin
