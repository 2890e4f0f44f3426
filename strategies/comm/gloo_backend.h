#pragma once

#include <levin/strategies/comm/process_group_options.h>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace levin {

/// Makes Gloo's backend for CPU and CUDA tensors. It listens on the interface that GLOO_SOCKET_IFNAME names (several:
/// "eth0,eth1"), else on the loopback where all ranks are on one host, else on the one that leads to the rendezvous.
/// Once all ranks have connected, which is when it returns, nobody else can.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ProcessGroupOptions& options);

}  // namespace levin
