#include "tests/fuzz/fuzz.h"

#include <levin/strategies/comm/store_protocol.h>
#include <levin/strategies/comm/store_server.h>

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>

namespace {

using levin::Descriptor;
namespace protocol = levin::store_protocol;

constexpr const char* kSecret = "secret";

sockaddr_un address() {
  sockaddr_un result{};
  result.sun_family = AF_UNIX;
  std::snprintf(result.sun_path, sizeof result.sun_path, "%s/store", levin::fuzzing::folder().c_str());
  return result;
}

Descriptor listener() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un place = address();
  if (::bind(socket.number(), reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0 ||
      ::listen(socket.number(), 16) != 0)
    levin::fuzzing::fail("the store's socket could not be made");
  return socket;
}

void send_all(const Descriptor& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;  // the server has closed the connection
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

/// Less where the server has closed the connection.
std::string receive(const Descriptor& socket, size_t size) {
  std::string bytes(size, '\0');
  size_t received = 0;
  while (received < size) {
    const ssize_t count = ::recv(socket.number(), bytes.data() + received, size - received, 0);
    if (count < 0 && errno == EINTR) continue;  // libFuzzer's alarm
    if (count <= 0) break;
    received += static_cast<size_t>(count);
  }
  bytes.resize(received);
  return bytes;
}

Descriptor connect(bool proves) {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un place = address();
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0)
    levin::fuzzing::fail("nobody serves the store");
  const std::string greeting = receive(socket, protocol::kGreeting.size() + protocol::kNonceBytes);
  if (greeting.size() != protocol::kGreeting.size() + protocol::kNonceBytes) levin::fuzzing::fail("no greeting came");
  if (!proves) return socket;
  const std::string server_nonce = greeting.substr(protocol::kGreeting.size());
  const std::string nonce(protocol::kNonceBytes, 'n');
  send_all(socket, nonce + protocol::client_proof(kSecret, server_nonce, nonce));
  if (receive(socket, protocol::kProofBytes) != protocol::server_proof(kSecret, server_nonce, nonce))
    levin::fuzzing::fail("the server did not prove itself");
  return socket;
}

/// The store serves until the process has ended: OpenSSL's clean-up, at exit, comes before that of static variables.
Descriptor rank_of_new_store() {
  static const auto* const server = new levin::StoreServer(listener(), kSecret, {.keys = 64, .bytes = size_t{1} << 20});
  static_cast<void>(server);
  return connect(/*proves=*/true);
}

}  // namespace

// What a job's store is sent: by a stranger, by a rank in whatever pieces, or by a rank as one request. The first byte
// says by whom.
void levin::fuzzing::fuzz(std::string_view input) {
  static const Descriptor rank = rank_of_new_store();
  if (input.empty()) return;
  const int sender = static_cast<unsigned char>(input[0]) % 3;
  input.remove_prefix(1);
  if (sender == 0) {
    const auto length = static_cast<uint32_t>(input.size());
    send_all(rank, std::string_view(reinterpret_cast<const char*>(&length), sizeof length));
    send_all(rank, input);
    const std::string size = receive(rank, 4);
    if (size.size() != 4 || receive(rank, protocol::read_length(size)).size() != protocol::read_length(size))
      fail("a request was not answered");
  } else {
    const Descriptor other = connect(/*proves=*/sender == 1);
    send_all(other, input);
    ::shutdown(other.number(), SHUT_WR);
    while (!receive(other, 1 << 16).empty()) {
    }
  }
}
