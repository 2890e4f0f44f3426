#include <levin/strategies/comm/network.h>

#include <levin/core/base/error.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

namespace levin {
namespace {

Descriptor make_socket(int family, int type) { return Descriptor(::socket(family, type | SOCK_CLOEXEC, 0)); }

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

struct FreeInterfaces {
  void operator()(ifaddrs* interfaces) const { ::freeifaddrs(interfaces); }
};
using Interfaces = std::unique_ptr<ifaddrs, FreeInterfaces>;

/// getaddrinfo's status, and the addresses where it is 0. The port is that of the discard service where none is used;
/// an empty host: this one's own, at all its addresses.
std::pair<int, Addresses> look_up(const std::string& host, int64_t port = 9) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  if (host.empty()) hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
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
    const Descriptor socket = make_socket(entry->ai_family, SOCK_DGRAM);
    if (!socket.is_open() || ::connect(socket.number(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&own), &size) != 0) continue;
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
  const Descriptor socket = make_socket(AF_INET, SOCK_STREAM);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket.is_open() || ::bind(socket.number(), generic, size) != 0 ||
      ::getsockname(socket.number(), generic, &size) != 0)
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

bool is_loopback_address(const std::string& address) {
  return address.starts_with("127.") || address == "localhost" || address == "::1";
}

Descriptor listen_at(const std::string& address, int64_t port) {
  const auto [status, addresses] = look_up(address, port);
  int error = status == 0 ? EADDRNOTAVAIL : EINVAL;
  // All addresses of both families where the system has both: the socket of version 6 serves version 4 too.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
      if (entry->ai_family != family) continue;
      Descriptor socket = make_socket(family, SOCK_STREAM);
      const int on = 1;
      const int off = 0;
      if (socket.is_open()) {
        ::setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (family == AF_INET6) ::setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (::bind(socket.number(), entry->ai_addr, entry->ai_addrlen) == 0 &&
            ::listen(socket.number(), SOMAXCONN) == 0)
          return socket;
      }
      if (error != EADDRINUSE) error = errno;
    }
  }
  errno = error;
  return {};
}

std::string own_address(const std::string& host) {
  const auto [status, addresses] = look_up(host);
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    std::string address = address_for_others(entry->ai_addr);
    if (address.empty()) continue;
    const Descriptor socket = make_socket(entry->ai_family, SOCK_STREAM);
    // A port that the system chooses tells as well as any whether the address is one of this host's.
    sockaddr_storage any_port{};
    std::memcpy(&any_port, entry->ai_addr, entry->ai_addrlen);
    (entry->ai_family == AF_INET ? reinterpret_cast<sockaddr_in&>(any_port).sin_port
                                 : reinterpret_cast<sockaddr_in6&>(any_port).sin6_port) = 0;
    if (socket.is_open() &&
        ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&any_port), entry->ai_addrlen) == 0)
      return address;
  }
  return "";
}

Descriptor connect_to(const std::string& host, int64_t port, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto [status, addresses] = look_up(host, port);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    Descriptor socket = make_socket(entry->ai_family, SOCK_STREAM);
    if (!socket.is_open()) {
      error = errno;
      continue;
    }
    const int flags = ::fcntl(socket.number(), F_GETFL);
    ::fcntl(socket.number(), F_SETFL, flags | O_NONBLOCK);
    if (::connect(socket.number(), entry->ai_addr, entry->ai_addrlen) != 0) {
      error = errno;
      if (error != EINPROGRESS) continue;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd ready{.fd = socket.number(), .events = POLLOUT, .revents = 0};
      socklen_t size = sizeof error;
      if (::poll(&ready, 1, std::max(0, static_cast<int>(left.count()))) <= 0) {
        error = ETIMEDOUT;
        continue;
      }
      ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) continue;
    }
    ::fcntl(socket.number(), F_SETFL, flags);
    set_for_messages(socket.number());
    return socket;
  }
  errno = error;
  return {};
}

int64_t bound_port(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto& four = *reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(four.sin_port));
  }
  if (address->sa_family != AF_INET6) return "an unknown address";
  const auto& six = *reinterpret_cast<const sockaddr_in6*>(address);
  ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), ntohs(six.sin6_port));
}

void set_for_messages(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void set_nonblocking(int socket) { ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK); }

std::vector<int> listening_sockets() {
  std::vector<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0)
      found.push_back(descriptor);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void admit_nobody(int listening_socket) {
  sock_filter drop{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop};
  ::setsockopt(listening_socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
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
