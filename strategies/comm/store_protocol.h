#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What a StoreServer and its clients say to each other.
///
/// The server greets with kGreeting and a nonce. The client answers with a nonce of its own and its proof; the server
/// reads nothing more before that is right, and then proves itself. Both nonces are new for each connection, so that
/// an answer that was overheard is worth nothing, and the secret never travels. Then come requests and answers, each
/// a length in four bytes and as many bytes. Numbers are little-endian.
namespace levin::store_protocol {

constexpr std::string_view kGreeting = "levin-1\n";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
/// What a server sends in the place of its proof to a client whose own is wrong.
constexpr std::string_view kRefusal = "the proof of the secret is wrong";
static_assert(kRefusal.size() == kProofBytes);

/// c10d's own bounds.
constexpr size_t kMostMessageBytes = 16 << 20;
constexpr size_t kMostKeyBytes = 64 << 10;
constexpr size_t kMostValueBytes = 8 << 20;

/// What a client asks for, with what follows it in the message and what the answer holds.
enum class Request : uint8_t {
  kSet,         ///< key, value
  kGet,         ///< key -> kDone, value, or kAbsent
  kAdd,         ///< key, number -> number
  kCheck,       ///< keys -> kDone where all are there, else kAbsent
  kDelete,      ///< key -> kDone, or kAbsent
  kCompareSet,  ///< key, expected, desired -> value
  kAppend,      ///< key, value
  kCountKeys,   ///< -> number
  kListKeys,    ///< -> keys
};

/// How an answer begins.
enum class Answer : uint8_t {
  kDone,
  kAbsent,
  kRefused,  ///< a sentence says why
};

/// Proofs of both sides for one connection.
std::string client_proof(std::string_view secret, std::string_view server_nonce, std::string_view client_nonce);
std::string server_proof(std::string_view secret, std::string_view server_nonce, std::string_view client_nonce);

/// Length of what follows the four bytes at the front.
size_t read_length(std::string_view bytes);

/// Builds a message.
class Writer {
 public:
  explicit Writer(uint8_t kind);
  Writer& text(std::string_view value);
  Writer& number(int64_t value);
  /// The message with its length in front.
  std::string take();

 private:
  std::string bytes_;
};

/// Takes a message apart; nothing where it is shorter than what is asked for.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  std::optional<uint8_t> kind();
  std::optional<std::string> text();
  std::optional<int64_t> number();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace levin::store_protocol
