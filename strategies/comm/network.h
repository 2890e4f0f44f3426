#pragma once

#include <chrono>
#include <cstdint>
#include <string>

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

/// The names of this host's interfaces that have an address, "eth0, lo".
std::string interface_names();

}  // namespace levin
