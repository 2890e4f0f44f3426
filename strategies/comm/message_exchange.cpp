#include <levin/strategies/comm/message_exchange.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/futex.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

/// One end of a channel, as its rank sees it.
class ChannelEnd {
 public:
  ChannelEnd(TeamMemory& memory, int64_t from, int64_t to)
      : channel_(memory.channel(from, to)), bytes_(memory.channel_bytes(from, to)) {}

  int64_t space() const {
    return static_cast<int64_t>(bytes_.size()) - available_between(channel_.written.load(std::memory_order_relaxed),
                                                                   channel_.read.load(std::memory_order_acquire));
  }
  int64_t available() const {
    return available_between(channel_.written.load(std::memory_order_acquire),
                             channel_.read.load(std::memory_order_relaxed));
  }

  /// At most space() bytes.
  void write(const void* from, int64_t count) {
    const uint64_t position = channel_.written.load(std::memory_order_relaxed);
    for_each_stretch(position, count, [&](std::byte* stretch, int64_t done, int64_t size) {
      std::memcpy(stretch, static_cast<const std::byte*>(from) + done, size);
    });
    channel_.written.store(position + count, std::memory_order_release);
  }

  /// At most available() bytes.
  void read(void* to, int64_t count) {
    const uint64_t position = channel_.read.load(std::memory_order_relaxed);
    for_each_stretch(position, count, [&](std::byte* stretch, int64_t done, int64_t size) {
      std::memcpy(static_cast<std::byte*>(to) + done, stretch, size);
    });
    channel_.read.store(position + count, std::memory_order_release);
  }

 private:
  static int64_t available_between(uint64_t written, uint64_t read) { return static_cast<int64_t>(written - read); }

  /// The bytes go around: at most two stretches of memory.
  template <class Copy>
  void for_each_stretch(uint64_t position, int64_t count, Copy copy) {
    const auto start = static_cast<int64_t>(position % bytes_.size());
    const int64_t first = std::min<int64_t>(count, static_cast<int64_t>(bytes_.size()) - start);
    if (first > 0) copy(bytes_.data() + start, 0, first);
    if (first < count) copy(bytes_.data(), first, count - first);
  }

  SharedChannel& channel_;
  std::span<std::byte> bytes_;
};

}  // namespace

MessageExchange::MessageExchange(std::shared_ptr<SharedMemoryTeam> team, int64_t rank)
    : team_(std::move(team)), rank_(rank), outgoing_(team_->size()), incoming_(team_->size()) {}

MessageExchange::~MessageExchange() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  team_->memory().doorbell(rank_).ring();
  if (helper_.joinable()) helper_.join();
  Finished finished;
  fail_all(std::make_exception_ptr(
               CommunicationError("shared_memory", "the process group ended before this message was sent or received")),
           finished);
  call_back(finished);
}

void MessageExchange::send(at::Tensor tensor, int64_t to, int64_t tag, std::chrono::milliseconds timeout, Done done) {
  team_->throw_if_aborted();
  Finished finished;
  bool is_done = false;
  {
    const MutexLock lock(mutex_);
    outgoing_[to].requests.push_back(
        {std::move(tensor), tag, std::move(done), fmt::format("send to rank {} (tag {})", to, tag), timeout,
         Clock::now() + std::min<std::chrono::milliseconds>(timeout, SharedBarrier::kForever)});
    is_done = move_what_fits(finished);
  }
  go_on(is_done, finished);
}

void MessageExchange::receive(at::Tensor tensor, int64_t from, int64_t tag, std::chrono::milliseconds timeout,
                              Done done) {
  team_->throw_if_aborted();
  Finished finished;
  bool is_done = false;
  {
    const MutexLock lock(mutex_);
    incoming_[from].requests.push_back(
        {std::move(tensor), tag, std::move(done), fmt::format("receive from rank {} (tag {})", from, tag), timeout,
         Clock::now() + std::min<std::chrono::milliseconds>(timeout, SharedBarrier::kForever)});
    is_done = move_what_fits(finished);
  }
  go_on(is_done, finished);
}

bool MessageExchange::move_what_fits(Finished& finished) {
  move_all(finished);
  const bool is_done = is_idle();
  if (!is_done && !helper_.joinable()) helper_ = std::thread([this] { run_helper(); });
  return is_done;
}

void MessageExchange::go_on(bool is_done, Finished& finished) {
  call_back(finished);
  if (!is_done) team_->memory().doorbell(rank_).ring();
}

void MessageExchange::progress() {
  Finished finished;
  if (mutex_.try_lock()) {
    const MutexLock lock(mutex_, std::adopt_lock);
    move_all(finished);
  }
  call_back(finished);
}

void MessageExchange::move_all(Finished& finished) {
  try {
    team_->throw_if_aborted();
    for (int64_t rank = 0; rank < team_->size(); ++rank) {
      const bool sent = move_outgoing(rank, finished);
      const bool received = move_incoming(rank, finished);
      if (sent || received) team_->memory().doorbell(rank).ring();
    }
  } catch (const Error&) {
    fail_all(std::current_exception(), finished);
  }
}

bool MessageExchange::move_outgoing(int64_t to, Finished& finished) {
  Outgoing& outgoing = outgoing_[to];
  ChannelEnd channel(team_->memory(), rank_, to);
  bool moved = false;
  while (!outgoing.requests.empty()) {
    Request& request = outgoing.requests.front();
    const auto bytes = static_cast<int64_t>(request.tensor.nbytes());
    if (!outgoing.header_sent) {
      if (channel.space() < static_cast<int64_t>(sizeof(Header))) return moved;
      const Header header{request.tag, request.tensor.numel(), static_cast<int64_t>(request.tensor.scalar_type()),
                          bytes};
      channel.write(&header, sizeof(header));
      outgoing.header_sent = moved = true;
    }
    if (const int64_t part = std::min(bytes - outgoing.sent, channel.space()); part > 0) {
      channel.write(static_cast<const std::byte*>(request.tensor.const_data_ptr()) + outgoing.sent, part);
      outgoing.sent += part;
      moved = true;
    }
    if (outgoing.sent < bytes) return moved;
    finished.emplace_back(std::move(request.done), nullptr);
    outgoing.requests.pop_front();
    outgoing.header_sent = false;
    outgoing.sent = 0;
  }
  return moved;
}

bool MessageExchange::move_incoming(int64_t from, Finished& finished) {
  Incoming& incoming = incoming_[from];
  ChannelEnd channel(team_->memory(), from, rank_);
  bool moved = false;
  deliver_stashed(incoming, from, finished);
  for (;;) {
    if (!incoming.in_message) {
      // Without a request the message stays where it is: the sender is not to run ahead without end.
      if (incoming.requests.empty() || channel.available() < static_cast<int64_t>(sizeof(Header))) return moved;
      channel.read(&incoming.header, sizeof(incoming.header));
      moved = incoming.in_message = true;
      incoming.received = 0;
      incoming.receiver = {};
      auto& requests = incoming.requests;
      const auto match = std::find_if(requests.begin(), requests.end(),
                                      [&](const Request& request) { return request.tag == incoming.header.tag; });
      if (match != requests.end()) {
        check_fits(incoming.header, *match, from);
        incoming.receiver = std::move(*match);
        requests.erase(match);
      } else {
        incoming.stash = {incoming.header, std::vector<std::byte>(incoming.header.bytes)};
      }
    }
    const bool wanted = incoming.receiver.tensor.defined();
    auto* target = wanted ? static_cast<std::byte*>(incoming.receiver.tensor.data_ptr()) : incoming.stash.bytes.data();
    if (const int64_t part = std::min(incoming.header.bytes - incoming.received, channel.available()); part > 0) {
      channel.read(target + incoming.received, part);
      incoming.received += part;
      moved = true;
    }
    if (incoming.received < incoming.header.bytes) return moved;
    incoming.in_message = false;
    if (wanted) {
      finished.emplace_back(std::move(incoming.receiver.done), nullptr);
      incoming.receiver = {};
    } else {
      incoming.stashed.push_back(std::move(incoming.stash));
      deliver_stashed(incoming, from, finished);
    }
  }
}

void MessageExchange::deliver_stashed(Incoming& incoming, int64_t from, Finished& finished) {
  for (auto request = incoming.requests.begin(); !incoming.stashed.empty() && request != incoming.requests.end();) {
    const auto match = std::find_if(incoming.stashed.begin(), incoming.stashed.end(),
                                    [&](const Stashed& stashed) { return stashed.header.tag == request->tag; });
    if (match == incoming.stashed.end()) {
      ++request;
      continue;
    }
    check_fits(match->header, *request, from);
    if (!match->bytes.empty()) std::memcpy(request->tensor.data_ptr(), match->bytes.data(), match->bytes.size());
    finished.emplace_back(std::move(request->done), nullptr);
    incoming.stashed.erase(match);
    request = incoming.requests.erase(request);
  }
}

void MessageExchange::check_fits(const Header& header, const Request& request, int64_t from) {
  const auto type = static_cast<at::ScalarType>(header.type);
  if (header.count == request.tensor.numel() && type == request.tensor.scalar_type()) return;
  team_->abort(
      fmt::format("a message does not fit the tensor that shall receive it; got {} {} elements from rank {} (tag "
                  "{}) for {} {} elements on rank {}",
                  header.count, c10::toString(type), from, header.tag, request.tensor.numel(),
                  c10::toString(request.tensor.scalar_type()), rank_));
  team_->throw_if_aborted();
}

void MessageExchange::fail_overdue() {
  const auto now = Clock::now();
  const auto look_at = [&](const Request& request, int64_t other) {
    if (now >= request.deadline)
      team_->abort(
          fmt::format("{} on rank {} timed out after {}", request.name, rank_, format_seconds(request.timeout)));
    else if (team_->memory().is_gone(other))
      team_->abort(fmt::format("{} on rank {} failed; rank {} has ended or left", request.name, rank_, other));
  };
  for (int64_t other = 0; other < team_->size(); ++other) {
    for (const Request& request : outgoing_[other].requests) look_at(request, other);
    for (const Request& request : incoming_[other].requests) look_at(request, other);
    if (incoming_[other].in_message && incoming_[other].receiver.tensor.defined())
      look_at(incoming_[other].receiver, other);
  }
}

void MessageExchange::fail_all(std::exception_ptr error, Finished& finished) {
  const auto fail = [&](std::deque<Request>& requests) {
    for (Request& request : requests) finished.emplace_back(std::move(request.done), error);
    requests.clear();
  };
  for (Outgoing& outgoing : outgoing_) fail(outgoing.requests);
  for (Incoming& incoming : incoming_) {
    fail(incoming.requests);
    if (incoming.receiver.tensor.defined()) finished.emplace_back(std::move(incoming.receiver.done), error);
    incoming.receiver = {};
  }
}

bool MessageExchange::is_idle() const {
  return std::all_of(outgoing_.begin(), outgoing_.end(), [](const Outgoing& it) { return it.requests.empty(); }) &&
         std::all_of(incoming_.begin(), incoming_.end(),
                     [](const Incoming& it) { return it.requests.empty() && !it.receiver.tensor.defined(); });
}

void MessageExchange::run_helper() {
  SharedDoorbell& doorbell = team_->memory().doorbell(rank_);
  for (auto looked = Clock::now();;) {
    const uint32_t rung = doorbell.rung.load(std::memory_order_seq_cst);
    Finished finished;
    bool idle = false;
    {
      const MutexLock lock(mutex_);
      if (stop_) return;
      move_all(finished);
      if (Clock::now() - looked >= SharedBarrier::kLookAround) {
        looked = Clock::now();
        fail_overdue();
        move_all(finished);
      }
      idle = is_idle();
    }
    call_back(finished);
    doorbell.sleeping.store(1, std::memory_order_seq_cst);
    futex_wait(doorbell.rung, rung,
               idle ? std::chrono::nanoseconds(SharedBarrier::kForever) : SharedBarrier::kLookAround);
    doorbell.sleeping.store(0, std::memory_order_seq_cst);
  }
}

void MessageExchange::call_back(Finished& finished) {
  for (auto& [done, error] : finished) done(error);
}

}  // namespace levin
