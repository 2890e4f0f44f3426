#pragma once

#include <levin/core/base/mutex.h>
#include <levin/strategies/comm/team_memory.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace levin {

class SharedMemoryTeam;

/// Sending and receiving between two ranks of a team, in the background: what does not fit the channel between them, or
/// has not come yet, is moved on by a helper thread, which starts when it is first needed. Messages with the same tag
/// arrive in the order in which they were sent. A message that does not fit the tensor that waits for it, a time-out or
/// the end of the other rank aborts the team.
class MessageExchange {
 public:
  /// Called once, from any thread: without an error when the tensor may be used again, or holds the message.
  using Done = std::function<void(std::exception_ptr error)>;

  MessageExchange(std::shared_ptr<SharedMemoryTeam> team, int64_t rank);
  /// Fails what has not been sent or received by now.
  ~MessageExchange();
  MessageExchange(const MessageExchange&) = delete;
  MessageExchange& operator=(const MessageExchange&) = delete;

  /// Sends `tensor`, which is contiguous and stays as it is until `done`.
  void send(at::Tensor tensor, int64_t to, int64_t tag, std::chrono::milliseconds timeout, Done done);
  void receive(at::Tensor tensor, int64_t from, int64_t tag, std::chrono::milliseconds timeout, Done done);
  /// Moves what can be moved now, in this thread: for who waits and would rather not be woken by the helper.
  void progress();

 private:
  struct Header {
    int64_t tag;
    int64_t count;
    int64_t type;
    int64_t bytes;
  };
  struct Request {
    at::Tensor tensor;
    int64_t tag = 0;
    Done done;
    std::string name;  ///< "send to rank 1 (tag 0)"
    std::chrono::milliseconds timeout{0};
    std::chrono::steady_clock::time_point deadline;
  };
  struct Outgoing {
    std::deque<Request> requests;
    bool header_sent = false;  ///< of the first request
    int64_t sent = 0;          ///< bytes of it
  };
  /// A message that came before anybody asked for it, while others from the same rank were waited for.
  struct Stashed {
    Header header;
    std::vector<std::byte> bytes;
  };
  struct Incoming {
    std::deque<Request> requests;
    bool in_message = false;  ///< whether a message's header has been read, and not all of the message
    Header header{};
    int64_t received = 0;
    Request receiver;  ///< of that message; without a tensor when it goes to `stash`
    Stashed stash;
    std::deque<Stashed> stashed;
  };
  using Finished = std::vector<std::pair<Done, std::exception_ptr>>;

  /// Moves what can be moved, and starts the helper where something is left; returns whether nothing is.
  bool move_what_fits(Finished& finished) LEVIN_REQUIRES(mutex_);
  /// After move_what_fits: calls back, and wakes the helper unless it has nothing to do.
  void go_on(bool is_done, Finished& finished) LEVIN_EXCLUDES(mutex_);
  void move_all(Finished& finished) LEVIN_REQUIRES(mutex_);
  bool move_outgoing(int64_t to, Finished& finished) LEVIN_REQUIRES(mutex_);
  bool move_incoming(int64_t from, Finished& finished) LEVIN_REQUIRES(mutex_);
  /// Gives stashed messages to requests that ask for them.
  void deliver_stashed(Incoming& incoming, int64_t from, Finished& finished);
  void check_fits(const Header& header, const Request& request, int64_t from);
  void fail_overdue() LEVIN_REQUIRES(mutex_);
  void fail_all(std::exception_ptr error, Finished& finished) LEVIN_REQUIRES(mutex_);
  bool is_idle() const LEVIN_REQUIRES(mutex_);
  void run_helper();
  /// Calls back without the lock.
  static void call_back(Finished& finished);

  std::shared_ptr<SharedMemoryTeam> team_;
  int64_t rank_;
  Mutex mutex_;
  std::vector<Outgoing> outgoing_ LEVIN_GUARDED_BY(mutex_);
  std::vector<Incoming> incoming_ LEVIN_GUARDED_BY(mutex_);
  bool stop_ LEVIN_GUARDED_BY(mutex_) = false;
  std::thread helper_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin
