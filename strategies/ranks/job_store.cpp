#include <levin/strategies/ranks/job_store.h>

#include <levin/strategies/comm/rendezvous.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace levin {

JobStore& JobStore::instance() {
  // Never destroyed: ranks may ask this process until it has gone.
  static auto* store = new JobStore;
  return *store;
}

int64_t JobStore::serve(std::chrono::milliseconds timeout) {
  const MutexLock lock(mutex_);
  if (served_ == nullptr) {
    const ServedStore served = make_local_server_store(timeout);
    served_ = served.store;
    port_ = served.port;
  }
  return port_;
}

c10::intrusive_ptr<c10d::Store> JobStore::join(const ClusterPlace& place, std::chrono::milliseconds timeout,
                                               const WaitingInVain& in_vain) {
  const MutexLock lock(mutex_);
  if (store_ == nullptr) {
    // Every rank connects in the same way, the one that serves the store too.
    ClusterPlace client = place;
    client.external_store = client.external_store || served_ != nullptr;
    store_ = connect_store(client, timeout, in_vain);
  }
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("trainer-{}", joined_++), store_);
}

}  // namespace levin
