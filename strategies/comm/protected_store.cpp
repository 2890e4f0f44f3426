#include <levin/strategies/comm/protected_store.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/job_secret.h>
#include <levin/strategies/comm/network.h>
#include <levin/strategies/comm/store_protocol.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

namespace levin {
namespace {

using Bytes = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;
using Keys = std::vector<std::string>;
using Milliseconds = std::chrono::milliseconds;
using store_protocol::Answer;
using store_protocol::Reader;
using store_protocol::Request;
using store_protocol::Writer;

/// Between two looks of a wait; see watched_store.cpp.
constexpr Milliseconds kFirstPause{1};
constexpr Milliseconds kLongestPause{100};
/// Between two attempts to connect.
constexpr Milliseconds kRetryPause{20};
/// For a server, once connected, to do its part of the handshake.
constexpr Milliseconds kHandshakeTime{5'000};
constexpr Milliseconds kCloneTime{30'000};

std::string_view view(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
Writer request(Request kind) { return Writer(static_cast<uint8_t>(kind)); }

/// False once the other side is gone.
bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

/// What came of `size` bytes until the other side left, or the deadline passed.
std::string receive(int socket, size_t size, std::optional<Clock::time_point> deadline = std::nullopt) {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < size) {
    if (deadline) {
      const auto left = std::chrono::ceil<Milliseconds>(*deadline - Clock::now()).count();
      pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
      if (left <= 0 || ::poll(&readable, 1, static_cast<int>(left)) == 0) break;
    }
    const ssize_t count = ::recv(socket, bytes.data() + done, size - done, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

std::string place_of(const StoreAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return fmt::format("{}:{}", is_ipv6 ? "[" + address.host + "]" : address.host, address.port);
}

/// Proves both sides to each other; false where the server left meanwhile, as one does that many strangers press.
bool shake_hands(int socket, const StoreAddress& address) {
  const auto deadline = Clock::now() + kHandshakeTime;
  const std::string greeting =
      receive(socket, store_protocol::kGreeting.size() + store_protocol::kNonceBytes, deadline);
  if (!greeting.starts_with(store_protocol::kGreeting.substr(0, greeting.size())))
    throw WrongSecretError("comm", fmt::format("what answers at {} is no store of a job of this version of Levin; "
                                               "hint: MASTER_PORT must be a port of this job's own",
                                               place_of(address)));
  if (greeting.size() < store_protocol::kGreeting.size() + store_protocol::kNonceBytes) return false;
  const std::string server_nonce = greeting.substr(store_protocol::kGreeting.size());
  const std::string nonce = random_bytes(store_protocol::kNonceBytes);
  if (!send_all(socket, nonce + store_protocol::client_proof(address.secret, server_nonce, nonce))) return false;
  const std::string proof = receive(socket, store_protocol::kProofBytes, deadline);
  if (proof.size() < store_protocol::kProofBytes) return false;
  if (same_proof(proof, store_protocol::server_proof(address.secret, server_nonce, nonce))) return true;
  throw WrongSecretError(
      "comm", fmt::format("the job's store at {} has another secret than this process{}; hint: {} or "
                          "{} must give the same one to all ranks (docs/security.md)",
                          place_of(address), address.secret.empty() ? ", which has none" : "", kJobSecretVariable,
                          kJobSecretFileVariable));
}

}  // namespace

ProtectedStore::ProtectedStore(StoreAddress address, Descriptor socket, Milliseconds timeout,
                               std::shared_ptr<StoreServer> server)
    : c10d::Store(timeout), address_(std::move(address)), server_(std::move(server)), socket_(std::move(socket)) {}

c10::intrusive_ptr<ProtectedStore> ProtectedStore::connect(const StoreAddress& address, Milliseconds patience,
                                                           Milliseconds timeout, std::shared_ptr<StoreServer> server) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    Descriptor socket = connect_to(address.host, address.port, std::max(left, Milliseconds(1)));
    if (socket.is_open() && shake_hands(socket.number(), address))
      return c10::make_intrusive<ProtectedStore>(address, std::move(socket), timeout, std::move(server));
    if (!socket.is_open() && (errno == EMFILE || errno == ENFILE))
      throw Error("comm",
                  fmt::format("cannot connect to the store at {}: {}; hint: `ulimit -n` limits the open files of "
                              "a process",
                              place_of(address), std::strerror(errno)));
    if (Clock::now() + kRetryPause >= deadline) return nullptr;
    std::this_thread::sleep_for(kRetryPause);
  }
}

c10::intrusive_ptr<c10d::Store> ProtectedStore::clone() {
  auto made = connect(address_, kCloneTime, getTimeout(), server_);
  if (made == nullptr)
    C10_THROW_ERROR(DistNetworkError, fmt::format("the store at {} did not answer within {}", place_of(address_),
                                                  format_seconds(kCloneTime)));
  return made;
}

std::string ProtectedStore::ask(std::string_view request) {
  if (request.size() > store_protocol::kMostMessageBytes)
    C10_THROW_ERROR(DistStoreError, fmt::format("a request of {} bytes is too long; valid: up to {}", request.size(),
                                                store_protocol::kMostMessageBytes));
  std::string answer;
  {
    const MutexLock lock(mutex_);
    std::string length;
    if (send_all(socket_.number(), request)) length = receive(socket_.number(), 4);
    if (length.size() == 4) answer = receive(socket_.number(), store_protocol::read_length(length));
    if (length.size() < 4 || answer.size() < store_protocol::read_length(length) || answer.empty())
      C10_THROW_ERROR(DistNetworkError, fmt::format("the connection to the store at {} is broken", place_of(address_)));
  }
  if (static_cast<Answer>(answer.front()) == Answer::kRefused) {
    Reader reader(answer);
    reader.kind();
    C10_THROW_ERROR(DistStoreError, reader.text().value_or("the store refused a request"));
  }
  return answer;
}

void ProtectedStore::set(const std::string& key, const Bytes& value) {
  ask(request(Request::kSet).text(key).text(view(value)).take());
}

void ProtectedStore::append(const std::string& key, const Bytes& value) {
  ask(request(Request::kAppend).text(key).text(view(value)).take());
}

Bytes ProtectedStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  const std::string answer =
      ask(request(Request::kCompareSet).text(key).text(view(expected)).text(view(desired)).take());
  return bytes_of(Reader(std::string_view(answer).substr(1)).text().value_or(""));
}

Bytes ProtectedStore::get(const std::string& key) {
  const std::string question = request(Request::kGet).text(key).take();
  std::string answer = ask(question);
  if (static_cast<Answer>(answer.front()) == Answer::kAbsent) {
    wait({key});
    answer = ask(question);
  }
  return bytes_of(Reader(std::string_view(answer).substr(1)).text().value_or(""));
}

int64_t ProtectedStore::add(const std::string& key, int64_t amount) {
  const std::string answer = ask(request(Request::kAdd).text(key).number(amount).take());
  return Reader(std::string_view(answer).substr(1)).number().value_or(0);
}

bool ProtectedStore::deleteKey(const std::string& key) {
  return static_cast<Answer>(ask(request(Request::kDelete).text(key).take()).front()) == Answer::kDone;
}

bool ProtectedStore::check(const Keys& keys) {
  Writer question = request(Request::kCheck);
  for (const std::string& key : keys) question.text(key);
  return static_cast<Answer>(ask(question.take()).front()) == Answer::kDone;
}

int64_t ProtectedStore::getNumKeys() {
  const std::string answer = ask(request(Request::kCountKeys).take());
  return Reader(std::string_view(answer).substr(1)).number().value_or(0);
}

Keys ProtectedStore::listKeys() {
  const std::string answer = ask(request(Request::kListKeys).take());
  Reader reader(std::string_view(answer).substr(1));
  Keys keys;
  while (auto key = reader.text()) keys.push_back(std::move(*key));
  return keys;
}

void ProtectedStore::wait(const Keys& keys, const Milliseconds& timeout) {
  const auto began = Clock::now();
  for (Milliseconds pause = kFirstPause; !check(keys); pause = std::min(2 * pause, kLongestPause)) {
    // c10d takes zero for "wait forever".
    const auto left = timeout == kNoTimeout ? Clock::duration(pause) : timeout - (Clock::now() - began);
    if (left <= Clock::duration::zero())
      C10_THROW_ERROR(DistStoreError,
                      fmt::format("wait timed out after {}, keys: {}", format_seconds(timeout), join(keys)));
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, left));
  }
}

std::vector<Bytes> ProtectedStore::multiGet(const Keys& keys) {
  wait(keys);
  std::vector<Bytes> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(get(key));
  return values;
}

void ProtectedStore::multiSet(const Keys& keys, const std::vector<Bytes>& values) {
  if (keys.size() != values.size()) C10_THROW_ERROR(ValueError, "as many values as keys are set");
  for (size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
}

}  // namespace levin
