#include <levin/strategies/comm/job_secret.h>

#include <levin/core/base/descriptor.h>
#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace levin {
namespace {

constexpr size_t kShortest = 16;
constexpr size_t kLongest = 4096;
constexpr size_t kDrawnBytes = 32;

Mutex drawn_mutex;
std::string drawn LEVIN_GUARDED_BY(drawn_mutex);

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The secret itself is never part of a message.
std::string checked(const std::string& secret, const std::string& origin) {
  if (secret.size() < kShortest || secret.size() > kLongest)
    throw ConfigError(
        fmt::format("the secret of the job in {} has {} characters; valid: {} to {}; hint: "
                    "`openssl rand -hex 32` draws a good one",
                    origin, secret.size(), kShortest, kLongest));
  return secret;
}

std::string read_secret_file(const std::string& path) {
  const std::string origin = fmt::format("{} ({})", kJobSecretFileVariable, path);
  // O_NONBLOCK: a pipe would wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0)
    throw ConfigError(fmt::format("cannot read the secret of the job in {}: {}", origin, std::strerror(errno)));
  if (!S_ISREG(status.st_mode))
    throw ConfigError(fmt::format("the secret of the job in {} is no regular file", origin));
  if (status.st_uid != ::geteuid())
    throw ConfigError(fmt::format("the secret of the job in {} belongs to user {}; valid: a file of this user, {}",
                                  origin, status.st_uid, ::geteuid()));
  if ((status.st_mode & 077) != 0)
    throw ConfigError(
        fmt::format("the secret of the job in {} can be read or written by others; got mode {:03o}; "
                    "hint: chmod 600 {}",
                    origin, status.st_mode & 0777, path));
  std::array<char, kLongest + 2> bytes{};
  const ssize_t count = ::read(file.number(), bytes.data(), bytes.size());
  if (count < 0)
    throw ConfigError(fmt::format("cannot read the secret of the job in {}: {}", origin, std::strerror(errno)));
  std::string secret(bytes.data(), static_cast<size_t>(count));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  return checked(secret, origin);
}

}  // namespace

std::string job_secret() {
  if (const std::string given = variable(kJobSecretVariable); !given.empty()) return checked(given, kJobSecretVariable);
  if (const std::string path = variable(kJobSecretFileVariable); !path.empty()) return read_secret_file(path);
  const MutexLock lock(drawn_mutex);
  return drawn;
}

std::string make_job_secret() {
  if (std::string known = job_secret(); !known.empty()) return known;
  const MutexLock lock(drawn_mutex);
  if (!drawn.empty()) return drawn;  // by another thread meanwhile
  // In hexadecimal digits, since it travels in an environment variable.
  for (const char byte : random_bytes(kDrawnBytes)) drawn += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return drawn;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t got = ::getrandom(bytes.data() + done, count - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error("comm", fmt::format("the system gives no random numbers: {}", std::strerror(errno)));
    done += static_cast<size_t>(got);
  }
  return bytes;
}

std::string proof_of(std::string_view secret, std::string_view message) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), bytes, message.size(), digest.data(), &size) ==
      nullptr)
    throw Error("comm", "OpenSSL could not compute a proof of the job's secret");
  return {digest.begin(), digest.begin() + size};
}

bool same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace levin
