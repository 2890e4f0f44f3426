#pragma once

#include <levin/core/base/descriptor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace levin {

/// How much a StoreServer takes.
struct StoreLimits {
  std::chrono::milliseconds proof_time{5000};  ///< for a connection to prove the secret before it is closed
  size_t unproven = 0;             ///< connections that have not yet: the oldest gives way; 0: an eighth of `ulimit -n`
  size_t keys = 1 << 20;           ///< in the store
  size_t bytes = size_t{1} << 30;  ///< of all keys and values
};

/// A store of keys and values for the ranks of a job, on a thread of its own. It answers to those alone that prove
/// the job's secret (store_protocol.h): of all others it reads some forty bytes, and never more than `unproven` of them
/// are open at once. It warns of the first that it turned away, the tenth, the hundredth and so on.
///
/// Memory is bounded too for those who have proven themselves: by the sizes of store_protocol.h and StoreLimits.
class StoreServer {
 public:
  /// `listener`: a socket that listens. `secret`: empty where the job has none; then whoever speaks the protocol is
  /// answered.
  StoreServer(Descriptor listener, const std::string& secret, StoreLimits limits = {});
  /// Closes all connections.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// The port at which it listens.
  int64_t port() const { return port_; }
  /// Number of connections that were turned away up to now.
  int64_t turned_away() const;

 private:
  struct Impl;
  int64_t port_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin
