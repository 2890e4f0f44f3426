#include <levin/strategies/comm/network.h>

#include <levin/core/base/error.h>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace levin {
namespace {

class Socket {
 public:
  Socket(int family, int type) : descriptor_(::socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }
  bool valid() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

struct FreeInterfaces {
  void operator()(ifaddrs* interfaces) const { ::freeifaddrs(interfaces); }
};
using Interfaces = std::unique_ptr<ifaddrs, FreeInterfaces>;

/// getaddrinfo's status, and the addresses where it is 0.
std::pair<int, Addresses> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The port (that of the discard service) is never used.
  const int status = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  return {status, Addresses(status == 0 ? found : nullptr)};
}

Interfaces list_interfaces() {
  ifaddrs* list = nullptr;
  return Interfaces(::getifaddrs(&list) == 0 ? list : nullptr);
}

/// Empty for addresses that mean nothing to other hosts.
std::string address_for_others(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    const auto& four = *reinterpret_cast<const sockaddr_in*>(address);
    const bool loopback = (ntohl(four.sin_addr.s_addr) >> 24) == 127;
    if (loopback || four.sin_addr.s_addr == INADDR_ANY) return "";
    ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(&six) || IN6_IS_ADDR_LINKLOCAL(&six) || IN6_IS_ADDR_UNSPECIFIED(&six)) return "";
    ::inet_ntop(AF_INET6, &six, text, sizeof text);
  }
  return text;
}

/// Connecting a datagram socket sends nothing; it makes the kernel choose the route, and with it the own address.
std::string address_on_route_to(const std::string& peer) {
  const auto [status, addresses] = look_up(peer);
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    const Socket socket(entry->ai_family, SOCK_DGRAM);
    if (!socket.valid() || ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) continue;
    const std::string address = address_for_others(reinterpret_cast<const sockaddr*>(&own));
    if (!address.empty()) return address;
  }
  return "";
}

std::string address_of_first_interface() {
  const Interfaces interfaces = list_interfaces();
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = interfaces.get(); entry != nullptr; entry = entry->ifa_next) {
      const bool up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
      if (!up || entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      const std::string address = address_for_others(entry->ifa_addr);
      if (!address.empty()) return address;
    }
  }
  return "";
}

}  // namespace

int64_t free_port() {
  const Socket socket(AF_INET, SOCK_STREAM);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket.valid() || ::bind(socket.get(), generic, size) != 0 || ::getsockname(socket.get(), generic, &size) != 0)
    throw Error("comm", fmt::format("cannot get a TCP port of this host: {}", std::strerror(errno)));
  return ntohs(address.sin_port);
}

void check_host_resolves(const std::string& host, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const int status = look_up(host).first;
    if (status == 0) return;
    if (std::chrono::steady_clock::now() >= deadline)
      throw Error("comm", fmt::format("the host '{}' of the rendezvous has no address: {}; hint: MASTER_ADDR must be "
                                      "the name or the address of rank 0's host, as every host of the job knows it",
                                      host, ::gai_strerror(status)));
    std::this_thread::sleep_for(std::min(patience, std::chrono::milliseconds(200)));
  }
}

std::string host_address(const std::string& peer) {
  const std::string address = peer.empty() ? "" : address_on_route_to(peer);
  return address.empty() ? address_of_first_interface() : address;
}

std::string interface_names() {
  std::set<std::string> names;
  const Interfaces interfaces = list_interfaces();
  for (const ifaddrs* entry = interfaces.get(); entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) names.insert(entry->ifa_name);
  }
  return join(std::vector<std::string>(names.begin(), names.end()));
}

}  // namespace levin
