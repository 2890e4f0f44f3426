#pragma once

#include <levin/core/interfaces/cluster_environment.h>
#include <levin/strategies/comm/watched_store.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Store;
}

namespace levin {

/// A store that this process serves, and the port at which others reach it.
struct ServedStore {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t port = 0;
};

/// Brings the ranks of a job together: returns once all of them have come to the TCP store at the place's main address,
/// which rank 0 serves unless something outside does. Keys are prefixed with the place's run_id, and with a name of
/// this attempt where the store outlives attempts. A job of one rank needs no address. Throws CommunicationError after
/// `timeout`, naming the address, or the ranks that did not come; `timeout` is also what calls on the store wait at
/// most. Throws RankFailedError, on all ranks, as soon as waiting is in vain on one of them.
c10::intrusive_ptr<c10d::Store> connect_store(const ClusterPlace& place, std::chrono::milliseconds timeout,
                                              const WaitingInVain& in_vain = {});

/// Ends connect_store on the ranks that wait in it, with this failure. `store` is theirs, without the place's run_id.
void call_off_rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const RankFailure& failure);

/// A port of the loopback that the system chooses, on which a store will be served: whoever connects meanwhile waits.
/// No thread runs until then, so that the process can fork.
class ReservedPort {
 public:
  /// Throws levin::Error.
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  int64_t port() const { return port_; }
  /// Serves the store, once.
  ServedStore serve(std::chrono::milliseconds timeout);

 private:
  int descriptor_ = -1;
  int64_t port_ = 0;
};

/// Serves a store for processes of this host, at a port of the loopback that the system chooses. They reach it through
/// a place with main_address "127.0.0.1", this port and `external_store`.
ServedStore make_local_server_store(std::chrono::milliseconds timeout);

/// A store for ranks that are threads of this process.
c10::intrusive_ptr<c10d::Store> make_thread_store(std::chrono::milliseconds timeout);

/// A store in a file that all ranks see; made new by the first rank, removed with the last rank's store. The path must
/// not hold the file of an earlier job.
c10::intrusive_ptr<c10d::Store> make_file_store(const std::string& path, int64_t world_size,
                                                std::chrono::milliseconds timeout);

}  // namespace levin
