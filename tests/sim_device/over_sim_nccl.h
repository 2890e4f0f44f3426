#pragma once

#include "tests/support/sim_device/sim_nccl.h"

#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/comm/process_group.h>
#include <levin/strategies/ranks/rank_options.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>

namespace levin::testing {

/// A strategy whose ranks, threads with a simulated device each, talk over sim_nccl.
template <class Base>
class OverSimNccl : public Base {
 public:
  using Options = typename Base::Options;
  explicit OverSimNccl(const Options& options) : Base(options) {}

 protected:
  c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ProcessGroupOptions& options) override {
    ProcessGroupOptions of_host = options;
    of_host.backend = "gloo";
    auto group = make_process_group(store, of_host);
    group->setBackend(sim::kDeviceType, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<sim::SimNccl>(c10::make_intrusive<c10d::PrefixStore>("sim", store),
                                                        static_cast<int>(options.rank),
                                                        static_cast<int>(options.world_size), options.timeout));
    return group;
  }
};

template <class Base>
std::shared_ptr<Strategy> make_strategy(typename Base::Options options, bool on_sim, double timeout = 5) {
  options.start_method = StartMethod::kThread;
  options.timeout = timeout;
  options.stall_report = 1;
  if (on_sim) return make<OverSimNccl<Base>>(options);
  return make<Base>(options);
}

}  // namespace levin::testing
