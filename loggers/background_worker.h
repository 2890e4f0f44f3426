#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace levin {

/// Destination of a BackgroundWorker's records, which may be slow or away. Used on the worker's thread alone.
class RecordSink {
 public:
  virtual ~RecordSink() = default;
  /// Takes records in their order; returns how many of them, from the first, are done with. 0: the first is of no kind
  /// that it knows (another version wrote it), and is set aside. Throws when it cannot take the first one now: the same
  /// records come again later, so that what arrived before a fault may arrive twice. Returns or throws soon after
  /// `stop` becomes true; what is done in a moment (a file) may still be done then.
  virtual size_t send(std::span<const std::string> records, const std::atomic<bool>& stop) = 0;
};

struct BackgroundWorkerOptions {
  std::string name = {};            ///< for messages, such as "MLflow logger"
  std::string spool = {};           ///< the folder for what cannot be sent; empty: it is kept in memory alone
  std::string later = {};           ///< what a user does about records that stay there, for the message at the end
  bool spool_must_be_free = false;  ///< for one that is there to empty the spool; see RecordSpool
  size_t memory_bytes = 16 << 20;   ///< bytes that may wait in memory
  std::chrono::milliseconds first_pause{500};  ///< after a failure; doubled with each further one
  std::chrono::milliseconds longest_pause{30'000};
};

/// Hands records to a sink on a thread of its own, so that the one who logs never waits for the sink and never sees its
/// errors.
///
/// - Records reach the sink in the order of push, each at least once.
/// - After a failure it tries again after a pause that doubles. What waits meanwhile goes to the spool, a folder on
///   disk, and is sent from there, before anything newer, once the sink works, in this process or a later one.
/// - While the sink holds a call (a server that answers slowly), records wait in memory; those beyond `memory_bytes`
///   go to the spool from the thread that pushes. When the disk takes none either, they are dropped and counted.
/// - A failure is any exception. The first is a warning; what is left at the end, in the spool or dropped, is another.
/// - What cannot be read back from the spool, or is of a kind that the sink does not know, is set aside with a warning.
/// - In a process forked from the one that made it, it does nothing.
class BackgroundWorker {
 public:
  /// Takes over what an earlier worker left in the spool. Throws levin::Error where `spool_must_be_free` and it is not.
  BackgroundWorker(BackgroundWorkerOptions options, std::unique_ptr<RecordSink> sink);
  /// Finishes without patience.
  ~BackgroundWorker();
  BackgroundWorker(const BackgroundWorker&) = delete;
  BackgroundWorker& operator=(const BackgroundWorker&) = delete;

  /// Queues a record. Never throws and never waits for the sink. For any thread.
  void push(std::string record) noexcept;
  /// Waits until all records pushed so far are sent, but no longer than `patience`, nor for a sink that fails. When
  /// that takes longer than a moment, everything goes to the spool first, so that a process killed meanwhile loses
  /// nothing, and a message says what is waited for. What is left stays in the spool; without one, the sink is called
  /// for it once more, with `stop` set. Ends the thread; later records are dropped.
  void finish(std::chrono::milliseconds patience) noexcept;
  /// Number of records that were neither sent nor dropped, in memory and in the spool.
  int64_t waiting() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace levin
