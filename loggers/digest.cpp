#include <levin/loggers/digest.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <fstream>
#include <memory>
#include <vector>

namespace levin {
namespace {

class Digest {
 public:
  explicit Digest(const EVP_MD* kind) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), kind, nullptr) == 1);
  }
  void add(std::string_view data) { check(EVP_DigestUpdate(context_.get(), data.data(), data.size()) == 1); }
  std::string bytes() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> result{};
    unsigned int size = 0;
    check(EVP_DigestFinal_ex(context_.get(), result.data(), &size) == 1);
    return {result.begin(), result.begin() + size};
  }

 private:
  static void check(bool worked) {
    if (!worked) throw Error("digest", "OpenSSL could not compute a digest");
  }

  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string hex_digest(const EVP_MD* kind, std::string_view data) {
  Digest digest(kind);
  digest.add(data);
  return hex(digest.bytes());
}

}  // namespace

std::string sha256_hex(std::string_view data) { return hex_digest(EVP_sha256(), data); }

std::string md5_hex(std::string_view data) { return hex_digest(EVP_md5(), data); }

std::string md5_base64_of_file(const std::string& path, const std::atomic<bool>& stop) {
  std::ifstream file(path, std::ios::binary);
  Digest digest(EVP_md5());
  std::vector<char> chunk(1 << 20);
  while (!stop && (file.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || file.gcount() > 0))
    digest.add({chunk.data(), static_cast<size_t>(file.gcount())});
  if (stop) throw Error("files", fmt::format("there was no time to read all of {}", path));
  if (!file.eof()) throw Error("files", fmt::format("cannot read {}", path));
  const std::string bytes = digest.bytes();
  std::array<unsigned char, 4 * (EVP_MAX_MD_SIZE / 3 + 1) + 1> text{};
  const int size = EVP_EncodeBlock(text.data(), reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  return {text.begin(), text.begin() + size};
}

}  // namespace levin
