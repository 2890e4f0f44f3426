#include <levin/strategies/comm/rendezvous.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/strategies/comm/attempt.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/c10d_log.h>
#include <levin/strategies/comm/c10d_store.h>
#include <levin/strategies/comm/job_secret.h>
#include <levin/strategies/comm/network.h>
#include <levin/strategies/comm/protected_store.h>
#include <levin/strategies/comm/store_server.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// Attempts to connect cannot be interrupted: so long one of them lasts.
constexpr Milliseconds kConnectTime{2'000};

/// Of the keys by which ranks tell each other that there is no use in waiting.
constexpr const char* kFailurePrefix = "rendezvous";

constexpr const char* kLoopback = "127.0.0.1";

/// How long a host's name may be unknown while the hosts of a job start.
constexpr Milliseconds kNamePatience{10'000};

std::string format_address(const ClusterPlace& place) {
  const bool is_ipv6 = place.main_address.find(':') != std::string::npos;
  return fmt::format("{}:{}", is_ipv6 ? "[" + place.main_address + "]" : place.main_address, place.main_port);
}

void check_place(const ClusterPlace& place) {
  if (place.rank < 0 || place.rank >= place.world_size)
    throw Error("comm", fmt::format("this rank is not one of the job's; got rank {} of {}; hint: RANK and WORLD_SIZE",
                                    place.rank, place.world_size));
  if (place.main_address.empty())
    throw Error("comm", fmt::format("the {} ranks have no address to meet at; hint: set MASTER_ADDR to rank 0's host",
                                    place.world_size));
  if (place.main_port < 1 || place.main_port > 65535)
    throw Error("comm", fmt::format("the {} ranks have no port to meet at; got {}; valid: 1 to 65535; hint: set "
                                    "MASTER_PORT to a free port of rank 0's host",
                                    place.world_size, place.main_port));
}

Milliseconds time_left(Clock::time_point deadline) {
  // Rounded up: a wait for so long ends after the deadline.
  return std::max(std::chrono::ceil<Milliseconds>(deadline - Clock::now()), Milliseconds(1));
}

void throw_if_in_vain(const WaitingInVain& in_vain) {
  if (const auto failure = in_vain ? in_vain() : std::nullopt) throw RankFailedError(*failure);
}

bool has_one_host(const ClusterPlace& place) { return place.local_world_size == place.world_size; }

/// torchrun's agents serve one of c10d's own; what else is outside of the job is a process of Levin's.
bool is_of_agent(const ClusterPlace& place) { return place.external_store && place.store_outlives_attempts; }

bool serves(const ClusterPlace& place) { return place.rank == 0 && !place.external_store; }

[[noreturn]] void throw_unreachable(const ClusterPlace& place, Milliseconds timeout) {
  const char* hint = place.external_store ? "the launcher's agent serves it"
                     : serves(place)      ? "MASTER_ADDR must be an address of rank 0's host, which is this one"
                                          : "rank 0 serves it: has rank 0 started, and lets a firewall through?";
  throw CommunicationError("comm", fmt::format("rank {} could not reach the rendezvous at {} within {}; hint: {}",
                                               place.rank, format_address(place), format_seconds(timeout), hint));
}

// --- Stores that Levin serves ---

/// Who cannot reach the job needs no door: the narrowest address that all ranks can.
std::string address_to_serve(const ClusterPlace& place) {
  if (has_one_host(place)) return kLoopback;
  return is_loopback_address(place.main_address) ? place.main_address : own_address(place.main_address);
}

std::shared_ptr<StoreServer> serve_rendezvous(const ClusterPlace& place) {
  Descriptor listener = listen_at(address_to_serve(place), place.main_port);
  if (listener.is_open()) return std::make_shared<StoreServer>(std::move(listener), job_secret());
  if (errno == EADDRINUSE)
    throw Error("comm", fmt::format("port {} of this host is in use, so rank 0 cannot serve the rendezvous there; "
                                    "hint: MASTER_PORT={}, which is free now, on all ranks",
                                    place.main_port, free_port()));
  throw Error("comm",
              fmt::format("rank 0 cannot serve the rendezvous at {}: {}", format_address(place), std::strerror(errno)));
}

/// Nothing where nobody answers until the deadline.
c10::intrusive_ptr<c10d::Store> connect_protected(const StoreAddress& address, std::shared_ptr<StoreServer> server,
                                                  Milliseconds timeout, Clock::time_point deadline,
                                                  const WaitingInVain& in_vain) {
  while (Clock::now() < deadline) {
    throw_if_in_vain(in_vain);
    auto store = ProtectedStore::connect(address, std::min(time_left(deadline), kConnectTime), timeout, server);
    if (store != nullptr) return store;
  }
  return nullptr;
}

c10::intrusive_ptr<c10d::Store> open_protected_store(const ClusterPlace& place, Milliseconds timeout,
                                                     Clock::time_point deadline, const WaitingInVain& in_vain) {
  const bool meet_on_loopback = has_one_host(place) && !place.external_store;
  const StoreAddress address{
      .host = meet_on_loopback ? kLoopback : place.main_address, .port = place.main_port, .secret = job_secret()};
  auto server = serves(place) ? serve_rendezvous(place) : nullptr;
  auto store = connect_protected(address, std::move(server), timeout, deadline, in_vain);
  if (store == nullptr) throw_unreachable(place, timeout);
  return store;
}

// --- The store of torchrun's agent ---

/// Nothing when kConnectTime was not enough.
c10::intrusive_ptr<c10d::Store> try_to_open_agents_store(const ClusterPlace& place, Milliseconds timeout,
                                                         Milliseconds left) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.main_port);
  options.isServer = false;
  // Who has come is counted here, so that a message can name the ranks that have not.
  options.waitWorkers = false;
  options.timeout = std::min(left, kConnectTime);
  const auto deadline = Clock::now() + options.timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(place.main_address, options);
    store->setTimeout(timeout);
    return store;
  } catch (const std::exception& error) {
    // c10d may give up connecting a little early, and a connection that is not answered as another type.
    const bool timed_out = dynamic_cast<const c10d::TimeoutError*>(&error) != nullptr || Clock::now() >= deadline;
    if (timed_out && options.timeout < left) return nullptr;
    if (timed_out) throw_unreachable(place, timeout);
    throw CommunicationError("comm",
                             fmt::format("rank {} could not join the rendezvous at {}: {}; hint: the launcher's "
                                         "agent serves it",
                                         place.rank, format_address(place), c10d_message(error)));
  }
}

c10::intrusive_ptr<c10d::Store> open_agents_store(const ClusterPlace& place, Milliseconds timeout,
                                                  Clock::time_point deadline, const WaitingInVain& in_vain) {
  while (true) {
    throw_if_in_vain(in_vain);
    if (auto store = try_to_open_agents_store(place, timeout, time_left(deadline))) return store;
  }
}

/// Goes on in a store that rank 0 serves. `open`: one that anybody may have written to; of it the address alone is
/// taken, with a proof that it is of this attempt of the job.
c10::intrusive_ptr<c10d::Store> move_to_protected_store(Store& open, const std::string& attempt,
                                                        const ClusterPlace& place, Milliseconds timeout,
                                                        Clock::time_point deadline, const WaitingInVain& in_vain) {
  const std::string secret = job_secret();
  const std::string host_key = attempt + "/store/host";
  const std::string port_key = attempt + "/store/port";
  const std::string proof_key = attempt + "/store/proof";
  const auto proof = [&](const std::string& host, const std::string& port) {
    return proof_of(secret, fmt::format("store of attempt {} at {} port {}", attempt, host, port));
  };
  StoreAddress address{.host = kLoopback, .secret = secret};
  std::shared_ptr<StoreServer> server;
  if (place.rank == 0) {
    if (!has_one_host(place)) {
      address.host = own_address(place.main_address);
      if (address.host.empty()) address.host = host_address(place.main_address);
    }
    Descriptor listener = listen_at(address.host, 0);
    if (!listener.is_open())
      throw Error("comm", fmt::format("rank 0 cannot serve a store at {}: {}", address.host, std::strerror(errno)));
    server = std::make_shared<StoreServer>(std::move(listener), secret);
    address.port = server->port();
    const std::string port = std::to_string(address.port);
    open.set(host_key, address.host);
    open.set(port_key, port);
    open.set(proof_key, proof(address.host, port));
  } else {
    const std::string given = open.get(proof_key, time_left(deadline));
    address.host = open.get(host_key, time_left(deadline));
    const std::string port = open.get(port_key, time_left(deadline));
    if (!same_proof(given, proof(address.host, port)))
      throw WrongSecretError(
          "comm", fmt::format("the address that rank {} found in the launcher's store at {} is not "
                              "proven with this job's secret; hint: {} or {} must give the same "
                              "one to all ranks (docs/security.md)",
                              place.rank, format_address(place), kJobSecretVariable, kJobSecretFileVariable));
    address.port = std::stoll(port);
  }
  auto store = connect_protected(address, std::move(server), timeout, deadline, in_vain);
  if (store == nullptr)
    throw CommunicationError("comm", fmt::format("rank {} could not reach the store of rank 0 at {} port {} within {}; "
                                                 "hint: does a firewall let it through?",
                                                 place.rank, address.host, address.port, format_seconds(timeout)));
  return store;
}

// --- The ranks ---

std::string arrival_key(int64_t rank) { return fmt::format("rendezvous/rank{}", rank); }

/// "1, 3 and 12 more"
std::string missing_ranks(c10d::Store& store, int64_t world_size) {
  constexpr size_t kNamed = 8;
  std::vector<std::string> named;
  int64_t more = 0;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (store.check({arrival_key(rank)})) continue;
    if (named.size() < kNamed)
      named.push_back(std::to_string(rank));
    else
      ++more;
  }
  return join(named) + (more > 0 ? fmt::format(" and {} more", more) : "");
}

void await_all_ranks(const c10::intrusive_ptr<c10d::Store>& store, const ClusterPlace& place, Milliseconds timeout,
                     Clock::time_point deadline, const WaitingInVain& in_vain) {
  const std::string complete = "rendezvous/complete";
  C10dStore failures(store);
  const auto watched = make_watched_store(store, [&]() -> std::optional<RankFailure> {
    if (auto first = find_failure(failures, kFailurePrefix)) return first;
    const auto own = in_vain ? in_vain() : std::nullopt;
    return own ? publish_failure(failures, kFailurePrefix, *own) : own;
  });
  try {
    store->set(arrival_key(place.rank), std::string("here"));
    if (store->add("rendezvous/arrived", 1) >= place.world_size) store->set(complete, std::string("all"));
    watched->wait({complete}, time_left(deadline));
  } catch (const RankFailedError&) {
    throw;
  } catch (const std::exception& error) {
    std::string missing;
    try {
      if (Clock::now() >= deadline) missing = missing_ranks(*store, place.world_size);
    } catch (const std::exception&) {
      // The server has gone meanwhile: the first error is the one to report.
    }
    if (missing.empty())
      throw CommunicationError("comm", fmt::format("rank {} lost the rendezvous at {}: {}", place.rank,
                                                   format_address(place), c10d_message(error)));
    throw CommunicationError(
        "comm", fmt::format("rank {} waited {} at {} for all {} ranks; missing: {}; hint: did these ranks start, "
                            "and do all of them have this MASTER_ADDR and MASTER_PORT?",
                            place.rank, format_seconds(timeout), format_address(place), place.world_size, missing));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const ClusterPlace& place, Milliseconds timeout,
                                              const WaitingInVain& in_vain) {
  if (place.world_size == 1 && !place.external_store) return make_thread_store(timeout);
  check_place(place);
  const QuietC10d quiet(QuietC10d::Hides::kErrors);
  const auto deadline = Clock::now() + timeout;
  check_host_resolves(place.main_address, std::min(timeout, kNamePatience));
  auto store = is_of_agent(place) ? open_agents_store(place, timeout, deadline, in_vain)
                                  : open_protected_store(place, timeout, deadline, in_vain);
  if (!place.run_id.empty()) store = c10::make_intrusive<c10d::PrefixStore>(place.run_id, store);
  if (place.store_outlives_attempts) {
    // Failures of earlier attempts lie in the store as well: here only this rank's own news count.
    C10dStore used(in_vain ? make_watched_store(store, in_vain) : store);
    const auto attempt = agree_on_attempt(used, place.rank, place.world_size, time_left(deadline), in_vain);
    if (is_served_by_rank_zero(place))
      store = move_to_protected_store(used, attempt, place, timeout, deadline, in_vain);
    else
      store = c10::make_intrusive<c10d::PrefixStore>(attempt, store);
  }
  await_all_ranks(store, place, timeout, deadline, in_vain);
  return store;
}

bool is_served_by_rank_zero(const ClusterPlace& place) {
  return !place.external_store || (is_of_agent(place) && !job_secret().empty());
}

void call_off_rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const RankFailure& failure) {
  C10dStore failures(store);
  publish_failure(failures, kFailurePrefix, failure);
}

ReservedPort::ReservedPort() : listener_(listen_at(kLoopback, 0)) {
  if (!listener_.is_open())
    throw Error("comm", fmt::format("cannot serve a store on the loopback: {}", std::strerror(errno)));
  port_ = bound_port(listener_.number());
  make_job_secret();
}

ServedStore ReservedPort::serve(Milliseconds timeout) {
  LEVIN_CHECK(listener_.is_open(), "a port was served twice");
  const StoreAddress address{.host = kLoopback, .port = port_, .secret = job_secret()};
  auto server = std::make_shared<StoreServer>(std::move(listener_), address.secret);
  auto store = ProtectedStore::connect(address, timeout, timeout, std::move(server));
  if (store == nullptr)
    throw Error("comm", fmt::format("this process does not reach port {} of its own loopback", port_));
  return {std::move(store), port_};
}

ServedStore make_local_server_store(Milliseconds timeout) { return ReservedPort().serve(timeout); }

c10::intrusive_ptr<c10d::Store> make_thread_store(Milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(timeout);
  return store;
}

c10::intrusive_ptr<c10d::Store> make_file_store(const std::string& path, int64_t world_size, Milliseconds timeout) {
  // c10d would wait for the folder to appear.
  const auto folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw Error("comm", fmt::format("cannot make the ranks' store; got '{}', but there is no folder '{}'", path,
                                    folder.string()));
  try {
    auto store = c10::make_intrusive<c10d::FileStore>(path, static_cast<int>(world_size));
    store->setTimeout(timeout);
    return store;
  } catch (const std::exception& error) {
    throw Error("comm", fmt::format("cannot make the ranks' store in '{}': {}", path, c10d_message(error)));
  }
}

}  // namespace levin
