#include <levin/strategies/comm/store_server.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/strategies/comm/job_secret.h>
#include <levin/strategies/comm/network.h>
#include <levin/strategies/comm/store_protocol.h>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <list>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
using store_protocol::Answer;
using store_protocol::Reader;
using store_protocol::Request;
using store_protocol::Writer;

constexpr size_t kHelloBytes = store_protocol::kNonceBytes + store_protocol::kProofBytes;
/// How often connections that prove nothing are looked at, and a listener that could not accept is tried again.
constexpr std::chrono::milliseconds kTick{100};
constexpr size_t kReadBytes = 64 << 10;

size_t default_unproven() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 64;
  return std::clamp<size_t>(files.rlim_cur / 8, 8, 1024);
}

/// A server that has no descriptors for its ranks would keep them waiting.
void require_descriptors() {
  constexpr size_t kFewest = 16;
  std::vector<Descriptor> spare;
  while (spare.size() < kFewest) {
    spare.emplace_back(::eventfd(0, EFD_CLOEXEC));
    if (!spare.back().is_open())
      throw Error("comm", fmt::format("cannot serve the ranks' store: {}; got {} files that this process may still "
                                      "open; valid: {}, and two for each rank; hint: `ulimit -n` limits them",
                                      std::strerror(errno), spare.size() - 1, kFewest));
  }
}

/// A 64-bit number in decimal digits; nothing for other text.
std::optional<int64_t> to_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Why a request is not done, for the one who made it.
struct Refusal {
  std::string why;
};

/// The keys and values.
class Contents {
 public:
  explicit Contents(const StoreLimits& limits) : limits_(limits) {}

  std::string answer(Request request, Reader& reader) {
    switch (request) {
      case Request::kSet: {
        const std::string key = take_key(reader);
        put(key, take_value(reader));
        return done().take();
      }
      case Request::kGet: {
        const auto found = values_.find(take_key(reader));
        return found == values_.end() ? absent() : done().text(found->second).take();
      }
      case Request::kAdd:
        return done().number(add(take_key(reader), take_number(reader))).take();
      case Request::kCheck:
        while (!reader.at_end())
          if (!values_.contains(take_key(reader))) return absent();
        return done().take();
      case Request::kDelete:
        return remove(take_key(reader)) ? done().take() : absent();
      case Request::kCompareSet: {
        const std::string key = take_key(reader);
        const std::string expected = take_value(reader);
        const std::string desired = take_value(reader);
        const auto found = values_.find(key);
        // As in c10d's stores.
        if (found == values_.end() ? !expected.empty() : found->second != expected)
          return done().text(found == values_.end() ? expected : found->second).take();
        put(key, desired);
        return done().text(desired).take();
      }
      case Request::kAppend: {
        const std::string key = take_key(reader);
        const auto found = values_.find(key);
        put(key, (found == values_.end() ? "" : found->second) + take_value(reader));
        return done().take();
      }
      case Request::kCountKeys:
        return done().number(std::ssize(values_)).take();
      case Request::kListKeys: {
        Writer keys = done();
        for (const auto& [key, value] : values_) keys.text(key);
        return keys.take();
      }
    }
    throw Refusal{"there is no such request"};
  }

 private:
  static Writer done() { return Writer(static_cast<uint8_t>(Answer::kDone)); }
  static std::string absent() { return Writer(static_cast<uint8_t>(Answer::kAbsent)).take(); }

  static std::string take_key(Reader& reader) {
    auto key = reader.text();
    if (!key) throw Refusal{"a request lacks its key"};
    if (key->size() > store_protocol::kMostKeyBytes)
      throw Refusal{fmt::format("a key has {} bytes; valid: up to {}", key->size(), store_protocol::kMostKeyBytes)};
    return std::move(*key);
  }
  static std::string take_value(Reader& reader) {
    auto value = reader.text();
    if (!value) throw Refusal{"a request lacks its value"};
    check_value(*value);
    return std::move(*value);
  }
  static int64_t take_number(Reader& reader) {
    const auto number = reader.number();
    if (!number) throw Refusal{"a request lacks its number"};
    return *number;
  }
  static void check_value(const std::string& value) {
    if (value.size() > store_protocol::kMostValueBytes)
      throw Refusal{
          fmt::format("a value has {} bytes; valid: up to {}", value.size(), store_protocol::kMostValueBytes)};
  }

  void put(const std::string& key, std::string value) {
    check_value(value);
    const auto found = values_.find(key);
    const size_t freed = found == values_.end() ? 0 : key.size() + found->second.size();
    const size_t bytes = bytes_ - freed + key.size() + value.size();
    if (bytes > limits_.bytes || (found == values_.end() && values_.size() >= limits_.keys))
      throw Refusal{fmt::format("the store is full: {} keys and {} bytes", values_.size(), bytes_)};
    bytes_ = bytes;
    if (found == values_.end())
      values_.emplace(key, std::move(value));
    else
      found->second = std::move(value);
  }
  bool remove(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    bytes_ -= key.size() + found->second.size();
    values_.erase(found);
    return true;
  }
  int64_t add(const std::string& key, int64_t amount) {
    const auto found = values_.find(key);
    const auto before = found == values_.end() ? std::optional<int64_t>(0) : to_number(found->second);
    if (!before) throw Refusal{fmt::format("the key '{}' holds no number to add to", key.substr(0, 100))};
    int64_t sum = 0;
    if (__builtin_add_overflow(*before, amount, &sum)) throw Refusal{"a sum is out of the range of 64 bits"};
    put(key, std::to_string(sum));
    return sum;
  }

  const StoreLimits& limits_;
  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
};

struct Connection {
  Descriptor socket;
  std::string peer;
  std::string nonce;  ///< that the server greeted with
  Clock::time_point accepted;
  bool proven = false;
  std::string in;
  std::string out;  ///< while there is some, nothing more is read
  uint32_t events = 0;
};

}  // namespace

/// Everything but `turned_away` and `stop` is the thread's.
struct StoreServer::Impl {
  using Connections = std::list<Connection>;  ///< those without a proof first to last as they came

  void serve();
  void accept_some();
  /// False once the connection is over.
  bool attend(Connection& connection, uint32_t events);
  bool receive(Connection& connection);
  bool advance(Connection& connection);
  bool send(Connection& connection);
  bool admit(Connection& connection);
  std::string answer(std::string_view message);
  void close(Connections::iterator connection, const char* why);
  void turn_away(const Connection& connection, const std::string& why);
  void close_late();
  void watch(Connection& connection, uint32_t events, int operation);

  StoreLimits limits;
  std::string secret;
  Descriptor listener;
  Descriptor poll;
  Descriptor stop;
  Contents contents{limits};
  Connections unproven;
  Connections proven;
  std::unordered_map<int, Connections::iterator> by_socket;
  bool accepting = true;
  std::array<char, kReadBytes> buffer{};
  std::atomic<int64_t> turned_away{0};
  std::thread thread;
};

void StoreServer::Impl::watch(Connection& connection, uint32_t events, int operation) {
  if (operation == EPOLL_CTL_MOD && connection.events == events) return;
  connection.events = events;
  epoll_event event{.events = events, .data = {.fd = connection.socket.number()}};
  ::epoll_ctl(poll.number(), operation, connection.socket.number(), &event);
}

void StoreServer::Impl::serve() {
  const auto listen_for = [&](bool wanted) {
    epoll_event event{.events = wanted ? uint32_t{EPOLLIN} : 0, .data = {.fd = listener.number()}};
    ::epoll_ctl(poll.number(), EPOLL_CTL_MOD, listener.number(), &event);
  };
  std::array<epoll_event, 64> events{};
  for (;;) {
    const bool ticks = !unproven.empty() || !accepting;
    const int timeout = ticks ? static_cast<int>(kTick.count()) : -1;
    const int count = ::epoll_wait(poll.number(), events.data(), static_cast<int>(events.size()), timeout);
    if (count < 0 && errno != EINTR) return;
    const bool was_accepting = std::exchange(accepting, true);
    for (int i = 0; i < count; ++i) {
      const int socket = events[static_cast<size_t>(i)].data.fd;
      if (socket == stop.number()) return;
      if (socket == listener.number()) {
        accept_some();
      } else if (const auto found = by_socket.find(socket); found != by_socket.end()) {
        if (!attend(*found->second, events[static_cast<size_t>(i)].events))
          close(found->second, "it left or sent garbage");
      }
    }
    if (was_accepting != accepting) listen_for(accepting);
    close_late();
  }
}

void StoreServer::Impl::accept_some() {
  constexpr int kAtOnce = 16;  // the ranks are to be heard between strangers
  for (int i = 0; i < kAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    Descriptor socket(
        ::accept4(listener.number(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      log::warning_once(
          "no descriptor is left for a further connection to this job's store; hint: `ulimit -n` limits "
          "the open files of a process, and each rank needs two");
      // First those of strangers go, then the ranks that would come wait.
      if (!unproven.empty())
        close(unproven.begin(), "no descriptor was left");
      else
        accepting = false;
      return;
    }
    if (unproven.size() >= limits.unproven) close(unproven.begin(), "too many others wait");
    set_for_messages(socket.number());
    Connection& connection = unproven.emplace_back();
    connection.socket = std::move(socket);
    connection.peer = address_text(reinterpret_cast<const sockaddr*>(&address));
    connection.nonce = random_bytes(store_protocol::kNonceBytes);
    connection.accepted = Clock::now();
    by_socket.emplace(connection.socket.number(), std::prev(unproven.end()));
    watch(connection, EPOLLIN, EPOLL_CTL_ADD);
    connection.out = std::string(store_protocol::kGreeting) + connection.nonce;
    if (!send(connection)) close(std::prev(unproven.end()), "it left");
  }
}

bool StoreServer::Impl::attend(Connection& connection, uint32_t events) {
  if (!connection.out.empty() && !send(connection)) return false;
  if (!connection.out.empty()) return (events & EPOLLERR) == 0;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !receive(connection)) return false;
  return advance(connection);
}

bool StoreServer::Impl::receive(Connection& connection) {
  // Of a stranger no more than the answer to the greeting is read.
  const size_t wanted = connection.proven ? buffer.size() : kHelloBytes - connection.in.size();
  const ssize_t count = ::recv(connection.socket.number(), buffer.data(), wanted, 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.in.append(buffer.data(), static_cast<size_t>(count));
  return count > 0;
}

/// Does what has come as a whole.
bool StoreServer::Impl::advance(Connection& connection) {
  if (!connection.proven && !admit(connection)) return false;
  while (connection.proven && connection.out.empty()) {
    if (connection.in.size() < 4) return true;
    const size_t length = store_protocol::read_length(connection.in);
    if (length > store_protocol::kMostMessageBytes) {
      log::warning(
          fmt::format("a rank at {} sent the job's store a request of {} bytes, and is cut off; valid: up to {}",
                      connection.peer, length, store_protocol::kMostMessageBytes));
      return false;
    }
    if (connection.in.size() - 4 < length) return true;
    connection.out = answer(std::string_view(connection.in).substr(4, length));
    connection.in.erase(0, 4 + length);
    if (!send(connection)) return false;
  }
  return true;
}

/// True while nothing is wrong: the connection may still have to say more.
bool StoreServer::Impl::admit(Connection& connection) {
  if (connection.in.size() < kHelloBytes) return true;
  const std::string_view hello = connection.in;
  const std::string_view client_nonce = hello.substr(0, store_protocol::kNonceBytes);
  const std::string_view proof = hello.substr(store_protocol::kNonceBytes);
  if (!same_proof(proof, store_protocol::client_proof(secret, connection.nonce, client_nonce))) {
    connection.out = store_protocol::kRefusal;
    send(connection);
    return false;
  }
  connection.proven = true;
  connection.out = store_protocol::server_proof(secret, connection.nonce, client_nonce);
  connection.in.clear();
  const auto place = by_socket.at(connection.socket.number());
  proven.splice(proven.end(), unproven, place);
  return send(connection);
}

bool StoreServer::Impl::send(Connection& connection) {
  size_t sent = 0;
  while (sent < connection.out.size()) {
    const ssize_t count =
        ::send(connection.socket.number(), connection.out.data() + sent, connection.out.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) return false;
    if (count < 0) break;
    sent += static_cast<size_t>(count);
  }
  connection.out.erase(0, sent);
  watch(connection, connection.out.empty() ? uint32_t{EPOLLIN} : uint32_t{EPOLLOUT}, EPOLL_CTL_MOD);
  return true;
}

std::string StoreServer::Impl::answer(std::string_view message) {
  Reader reader(message);
  try {
    return contents.answer(static_cast<Request>(reader.kind().value_or(0xFF)), reader);
  } catch (const Refusal& refusal) {
    return Writer(static_cast<uint8_t>(Answer::kRefused)).text(refusal.why).take();
  }
}

void StoreServer::Impl::close(Connections::iterator connection, const char* why) {
  by_socket.erase(connection->socket.number());
  if (connection->proven) {
    proven.erase(connection);
    return;
  }
  const size_t heard = connection->in.size();
  turn_away(*connection, heard == kHelloBytes ? "what it answered is no proof of the secret"
                         : heard > 0          ? fmt::format("it sent {} bytes that are no proof", heard)
                                              : why);
  unproven.erase(connection);
}

void StoreServer::Impl::close_late() {
  while (!unproven.empty() && Clock::now() - unproven.front().accepted > limits.proof_time)
    close(unproven.begin(), "it proved nothing in time");
}

void StoreServer::Impl::turn_away(const Connection& connection, const std::string& why) {
  const int64_t count = turned_away.fetch_add(1) + 1;
  int64_t power = 1;
  while (power < count) power *= 10;
  if (power != count) return;  // a flood of strangers is no flood of lines
  const std::string which = count == 1 ? "a connection" : fmt::format("{} connections by now, the last one", count);
  log::warning(fmt::format("{} from {} to this job's store was turned away: {}; hint: docs/security.md", which,
                           connection.peer, why));
}

StoreServer::StoreServer(Descriptor listener, const std::string& secret, StoreLimits limits)
    : port_(bound_port(listener.number())), impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  if (limits.unproven == 0) impl_->limits.unproven = default_unproven();
  impl_->secret = secret;
  impl_->listener = std::move(listener);
  require_descriptors();
  impl_->poll = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  impl_->stop = Descriptor(::eventfd(0, EFD_CLOEXEC));
  if (!impl_->poll.is_open() || !impl_->stop.is_open())
    throw Error("comm", fmt::format("cannot serve the ranks' store: {}", std::strerror(errno)));
  set_nonblocking(impl_->listener.number());
  for (const int socket : {impl_->listener.number(), impl_->stop.number()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = socket}};
    ::epoll_ctl(impl_->poll.number(), EPOLL_CTL_ADD, socket, &event);
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->serve(); });
}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  while (::write(impl_->stop.number(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  impl_->thread.join();
}

int64_t StoreServer::turned_away() const { return impl_->turned_away; }

}  // namespace levin
