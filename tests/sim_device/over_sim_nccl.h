#pragma once

#include "tests/support/sim_device/sim_device.h"
#include "tests/support/sim_device/sim_nccl.h"

#include <levin/strategies/comm/process_group.h>
#include <levin/strategies/ranks/rank_options.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <utility>

namespace levin::testing {

/// A strategy whose ranks are threads with a simulated device each, which talk over sim_nccl; on the CPU it is its
/// base.
template <class Base>
class OverSimNccl : public Base {
 public:
  using Options = typename Base::Options;
  explicit OverSimNccl(Options options) : Base(as_threads(std::move(options))) {}

 protected:
  c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ProcessGroupOptions& options) override {
    if (options.device.is_cpu()) return Base::make_group(store, options);
    ProcessGroupOptions of_host = options;
    of_host.backend = "gloo";
    auto group = make_process_group(store, of_host);
    group->setBackend(sim::kDeviceType, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<sim::SimNccl>(c10::make_intrusive<c10d::PrefixStore>("sim", store),
                                                        static_cast<int>(options.rank),
                                                        static_cast<int>(options.world_size), options.timeout));
    return group;
  }

 private:
  static Options as_threads(Options options) {
    options.start_method = StartMethod::kThread;
    return options;
  }
};

}  // namespace levin::testing
