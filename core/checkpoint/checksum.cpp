#include <levin/core/checkpoint/checksum.h>

#include <levin/core/checkpoint/input_file.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <vector>

namespace levin {
namespace {

/// Small enough that what was just hashed or read is still in the cache for the second use.
constexpr size_t kChunk = size_t{256} << 10;

}  // namespace

Checksum::Checksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_);
}

Checksum::~Checksum() { XXH3_freeState(state_); }

void Checksum::update(const void* data, size_t size) {
  if (size > 0) XXH3_128bits_update(state_, data, size);
}

std::string Checksum::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_));
  std::string digits;
  for (const unsigned char byte : canonical.digest) fmt::format_to(std::back_inserter(digits), "{:02x}", byte);
  return digits;
}

std::string checksum_of(std::string_view bytes) {
  Checksum checksum;
  checksum.update(bytes.data(), bytes.size());
  return checksum.hex();
}

FileSummary summarize_file(const std::string& path) {
  const InputFile file(path);
  Checksum checksum;
  std::vector<char> buffer(std::min<uint64_t>(kChunk, file.size()));
  for (uint64_t offset = 0; offset < file.size(); offset += buffer.size()) {
    const size_t size = std::min<uint64_t>(buffer.size(), file.size() - offset);
    file.read(offset, buffer.data(), size);
    checksum.update(buffer.data(), size);
  }
  return {file.size(), checksum.hex()};
}

void ChecksumFile::append(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  for (size_t offset = 0; offset < size; offset += kChunk) {
    const size_t count = std::min(kChunk, size - offset);
    checksum_.update(bytes + offset, count);
    file_->append(bytes + offset, count);
    size_ += count;
  }
}

}  // namespace levin
