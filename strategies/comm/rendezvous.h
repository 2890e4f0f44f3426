#pragma once

#include <levin/core/base/descriptor.h>
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

/// Brings the ranks of a job together: returns once all of them have come to the store at the place's main address,
/// which rank 0 serves unless something outside does. Keys are prefixed with the place's run_id, and with a name of
/// this attempt where the store outlives attempts. A job of one rank needs no address. Throws CommunicationError after
/// `timeout`, naming the address, or the ranks that did not come; `timeout` is also what calls on the store wait at
/// most. Throws RankFailedError, on all ranks, as soon as waiting is in vain on one of them.
///
/// A store that Levin serves (StoreServer) answers to those alone that know the job's secret (job_secret), and is
/// bound to the loopback where all ranks are on one host, else to the main address where that is one of this host's.
/// The store of torchrun's agent is c10d's, which answers to everybody: where there is a secret, all that the ranks
/// take from it is the address of a store that rank 0 serves, with a proof.
c10::intrusive_ptr<c10d::Store> connect_store(const ClusterPlace& place, std::chrono::milliseconds timeout,
                                              const WaitingInVain& in_vain = {});

/// Whether the store that connect_store returns is served by rank 0's process.
bool is_served_by_rank_zero(const ClusterPlace& place);

/// Ends connect_store on the ranks that wait in it, with this failure. `store` is theirs, without the place's run_id.
void call_off_rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const RankFailure& failure);

/// A port of the loopback that the system chooses, on which a store will be served: whoever connects meanwhile waits.
/// No thread runs until then, so that the process can fork. The secret of the job is drawn where none was given: forks
/// have it in memory, and other processes must be given it.
class ReservedPort {
 public:
  /// Throws levin::Error.
  ReservedPort();

  int64_t port() const { return port_; }
  /// Serves the store, once.
  ServedStore serve(std::chrono::milliseconds timeout);

 private:
  Descriptor listener_;
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
