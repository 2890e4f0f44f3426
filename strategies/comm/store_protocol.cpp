#include <levin/strategies/comm/store_protocol.h>

#include <levin/strategies/comm/job_secret.h>

#include <cstring>

namespace levin::store_protocol {
namespace {

constexpr size_t kLengthBytes = 4;

std::string little_endian(uint64_t value, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((value >> (8 * i)) & 0xFF);
  return text;
}

uint64_t from_little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

std::string proof(std::string_view secret, const char* whose, std::string_view server_nonce,
                  std::string_view client_nonce) {
  std::string message(kGreeting);
  message.append(whose).append(server_nonce).append(client_nonce);
  return proof_of(secret, message);
}

}  // namespace

std::string client_proof(std::string_view secret, std::string_view server_nonce, std::string_view client_nonce) {
  return proof(secret, "client", server_nonce, client_nonce);
}

std::string server_proof(std::string_view secret, std::string_view server_nonce, std::string_view client_nonce) {
  return proof(secret, "server", server_nonce, client_nonce);
}

size_t read_length(std::string_view bytes) { return from_little_endian(bytes.substr(0, kLengthBytes)); }

Writer::Writer(uint8_t kind) : bytes_(kLengthBytes, '\0') { bytes_.push_back(static_cast<char>(kind)); }

Writer& Writer::text(std::string_view value) {
  bytes_ += little_endian(value.size(), kLengthBytes);
  bytes_ += value;
  return *this;
}

Writer& Writer::number(int64_t value) {
  bytes_ += little_endian(static_cast<uint64_t>(value), 8);
  return *this;
}

std::string Writer::take() {
  bytes_.replace(0, kLengthBytes, little_endian(bytes_.size() - kLengthBytes, kLengthBytes));
  return std::move(bytes_);
}

std::optional<uint8_t> Reader::kind() {
  if (rest_.empty()) return std::nullopt;
  const auto value = static_cast<uint8_t>(rest_.front());
  rest_.remove_prefix(1);
  return value;
}

std::optional<std::string> Reader::text() {
  if (rest_.size() < kLengthBytes) return std::nullopt;
  const size_t size = read_length(rest_);
  if (rest_.size() - kLengthBytes < size) return std::nullopt;
  std::string value(rest_.substr(kLengthBytes, size));
  rest_.remove_prefix(kLengthBytes + size);
  return value;
}

std::optional<int64_t> Reader::number() {
  if (rest_.size() < 8) return std::nullopt;
  const auto value = static_cast<int64_t>(from_little_endian(rest_.substr(0, 8)));
  rest_.remove_prefix(8);
  return value;
}

}  // namespace levin::store_protocol
