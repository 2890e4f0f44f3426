// The header of Gloo's process group is empty without this.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif

#include <levin/strategies/comm/gloo_backend.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/comm/communication_error.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/strategies/comm/abortable_backend.h>
#include <levin/strategies/comm/broken_pipe_scope.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/network.h>

#include <fmt/format.h>
// Only this file includes Gloo's headers: they are those of another version than the code inside LibTorch. Devices and
// groups may be made and held; GlooStore must not be, because its table of virtual functions is another one.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

namespace levin {
namespace {

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

GlooDevice device_for_address(const std::string& address) {
  try {
    return c10d::ProcessGroupGloo::createDeviceForHostname(address);
  } catch (const std::exception& error) {
    throw Error("comm", fmt::format("Gloo cannot use this host's address {}: {}; this host's interfaces: {}; hint: "
                                    "GLOO_SOCKET_IFNAME=INTERFACE says which to use",
                                    address, c10d_message(error), interface_names()));
  }
}

GlooDevice device_for_interface(const std::string& name) {
  try {
    return c10d::ProcessGroupGloo::createDeviceForInterface(name);
  } catch (const std::exception& error) {
    throw Error("comm", fmt::format("GLOO_SOCKET_IFNAME names an interface that Gloo cannot use: {}; got '{}'; valid: "
                                    "{}",
                                    c10d_message(error), name, interface_names()));
  }
}

std::vector<GlooDevice> make_devices(const ProcessGroupOptions& options) {
  std::vector<GlooDevice> devices;
  if (const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME"); interfaces != nullptr && *interfaces != '\0') {
    std::istringstream names(interfaces);
    for (std::string name; std::getline(names, name, ',');) devices.push_back(device_for_interface(name));
    return devices;
  }
  std::string address = options.one_host ? "127.0.0.1" : host_address(options.main_address);
  if (address.empty()) {
    log::warning(
        "this host has no network address but the loopback's, by which ranks on other hosts cannot reach it; hint: "
        "GLOO_SOCKET_IFNAME=INTERFACE says which interface Gloo uses");
    address = "127.0.0.1";
  }
  devices.push_back(device_for_address(address));
  return devices;
}

/// Gloo asks nobody who connects for a proof. But once a group is made, all its connections are there, and each group
/// has sockets of its own: from then on nobody is let in any more.
class Door {
 public:
  /// Notes which sockets begin to listen in `make`.
  template <typename Make>
  auto watch(Make&& make) {
    static Mutex one_at_a_time;  // ranks may be threads
    const MutexLock lock(one_at_a_time);
    const std::vector<int> before = listening_sockets();
    auto made = make();
    const std::vector<int> after = listening_sockets();
    std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(sockets_));
    // Another thread's is among them; which is which cannot be told.
    if (sockets_.size() > made.size()) sockets_.clear();
    return made;
  }
  void shut() const {
    // Then Gloo connects when it first sends.
    const char* lazy = std::getenv("TORCH_GLOO_LAZY_INIT");
    if (lazy != nullptr && *lazy != '\0' && std::string_view(lazy) != "0") return;
    for (const int socket : sockets_) admit_nobody(socket);
  }

 private:
  std::vector<int> sockets_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ProcessGroupOptions& options) {
  const BrokenPipeScope broken_pipe;  // for Gloo's threads as well, which are started here
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  Door door;
  gloo->devices = door.watch([&] { return make_devices(options); });
  // One thread runs collectives, another lets a small one overtake a large one.
  gloo->threads = 2;
  try {
    auto made = make_abortable(c10::make_intrusive<c10d::ProcessGroupGloo>(
        store, static_cast<int>(options.rank), static_cast<int>(options.world_size), std::move(gloo)));
    door.shut();
    return made;
  } catch (const RankFailedError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string when = is_timeout(error) ? fmt::format("within {}", format_seconds(options.timeout)) : "";
    throw CommunicationError(
        "comm", fmt::format("rank {} of {} could not connect to the other ranks through Gloo{}{}: {}; hint: every rank "
                            "must reach every other; GLOO_SOCKET_IFNAME=INTERFACE says which interface to use",
                            options.rank, options.world_size, when.empty() ? "" : " ", when, c10d_message(error)));
  }
}

}  // namespace levin
