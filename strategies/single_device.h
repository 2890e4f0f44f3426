#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/ranks/single_rank.h>

#include <string>

namespace levin {

/// Options of SingleDevice, explained in describe().
struct SingleDeviceOptions {
  double hang_timeout = 600;

  static void describe(Schema<SingleDeviceOptions>& schema);
};

/// Runs on one device in one process: every collective is the identity.
class SingleDevice : public Strategy {
 public:
  using Options = SingleDeviceOptions;
  explicit SingleDevice(const Options& options = {}) : options_(options) {}

  std::string name() const override { return "single_device"; }
  Ranks& ranks() override { return rank_; }
  void setup_environment(const StrategySetup& setup) override;
  void setup_module(Module& module) override;
  GraphSupport graph_support() override;
  void teardown() override { rank_.end(); }

 private:
  const Options options_;
  SingleRank rank_;
};

}  // namespace levin
