#pragma once

#include <levin/core/interfaces/strategy.h>
#include <levin/strategies/ranks/rank_options.h>

#include <memory>

namespace levin::testing {

/// A strategy whose ranks are threads; on simulated devices they talk over sim_nccl.
template <class Base>
std::shared_ptr<Strategy> thread_ranks(typename Base::Options options = {}, double timeout = 240) {
  options.start_method = StartMethod::kThread;
  options.timeout = timeout;
  options.stall_report = 1;
  return make<Base>(options);
}

}  // namespace levin::testing
