#include <levin/core/options/capable_strategies.h>

#include <levin/core/base/error.h>
#include <levin/core/options/registries.h>
#include <levin/core/trainer/trainer.h>
#include <levin/strategies/single_device.h>

#include "../support/tiny.h"

#include <gmock/gmock-matchers.h>

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// What a program adds: a strategy that others differ from.
class Particular : public SingleDevice {
 public:
  using SingleDevice::SingleDevice;
  std::string name() const override { return "particular"; }
  StrategyCapabilities capabilities() const override { return {.several_nodes = true, .manual_optimization = false}; }
};

TEST(CapableStrategies, AreThoseOfTheRegistry) {
  registries().strategies.add<Particular>("particular");
  EXPECT_EQ(
      capable_strategies(&StrategyCapabilities::manual_optimization),
      "single_device, ddp, ddp_spawn, ddp_threads, sharded, sharded_spawn, sharded_threads, tensor, tensor_spawn, "
      "tensor_threads, context, context_spawn, context_threads, parameter_server, "
      "parameter_server_spawn, parameter_server_threads, horovod");
  EXPECT_EQ(capable_strategies(&StrategyCapabilities::several_devices),
            "dp, ddp, ddp_spawn, ddp_threads, ddp2, sharded, sharded_spawn, sharded_threads, pipeline, pipeline_spawn, "
            "pipeline_threads, tensor, tensor_spawn, tensor_threads, context, context_spawn, context_threads, "
            "parameter_server, parameter_server_spawn, "
            "parameter_server_threads, horovod");
  EXPECT_THAT(capable_strategies(&StrategyCapabilities::several_nodes), HasSubstr("horovod, particular"));
  EXPECT_THAT(capable_strategies(&StrategyCapabilities::half_precision), Not(HasSubstr("dp, ddp2")));
}

}  // namespace
}  // namespace levin
