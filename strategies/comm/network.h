#pragma once

#include <levin/core/base/descriptor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

struct sockaddr;

namespace levin {

/// A TCP port that nobody used a moment ago.
int64_t free_port();

/// Throws levin::Error when a host's name has no address. A name service that does not know the name yet, as when the
/// hosts of a job start together, is asked again for `patience`.
void check_host_resolves(const std::string& host, std::chrono::milliseconds patience);

/// The address of this host by which others reach it: that of the interface through which this host would reach
/// `peer`, or, where that is the loopback or `peer` is empty, of the first interface that is up. Empty when this host
/// has the loopback only.
std::string host_address(const std::string& peer);

/// Whether an address is written as one of the loopback: "127.0.0.1", "::1", "localhost".
bool is_loopback_address(const std::string& address);

/// A socket that listens at one address of this host, or at all of them where `address` is empty; port 0: one that the
/// system chooses. Not open where the system refuses, which errno then explains.
Descriptor listen_at(const std::string& address, int64_t port);

/// The address under which `host` is bound where other hosts are to reach a port of this one: its own address, unless
/// that is the loopback's or none of this host's; then empty, for all of them.
std::string own_address(const std::string& host);

/// Connects, within `patience`. Not open where that fails; errno then says why.
Descriptor connect_to(const std::string& host, int64_t port, std::chrono::milliseconds patience);

/// The port at which a socket listens.
int64_t bound_port(int socket);
/// "10.0.0.7:41230"
std::string address_text(const sockaddr* address);
/// Has small messages sent at once and a host that is gone noticed.
void set_for_messages(int socket);
/// Has calls on a socket return rather than wait.
void set_nonblocking(int socket);

/// The sockets of this process that listen, by their descriptors, in ascending order.
std::vector<int> listening_sockets();
/// Has the system drop whatever comes to a socket that listens: nobody connects any more, and connections that there
/// are go on. Without effect where the system knows no socket filters.
void admit_nobody(int listening_socket);

/// The names of this host's interfaces that have an address, "eth0, lo".
std::string interface_names();

}  // namespace levin
