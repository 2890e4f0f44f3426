#include <levin/core/interchange/zip_file.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

namespace levin {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr uint64_t kEndSize = 22;
constexpr uint64_t kLongestComment = 65535;
constexpr uint16_t kExtra64 = 1;
constexpr uint32_t kIn64 = std::numeric_limits<uint32_t>::max();  ///< the number is in the ZIP64 extra field

/// The little-endian number at an offset; nothing where the bytes end before.
template <class T>
std::optional<T> number_at(std::string_view bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return {};
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string_view part_of(std::string_view bytes, uint64_t offset, uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return {};
  return bytes.substr(offset, size);
}

}  // namespace

void ZipFile::fail(const std::string& what) const {
  throw Error("weights", fmt::format("{} is damaged or cut short: {}; hint: copy or save it again", path_, what));
}

ZipFile::ZipFile(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {
  if (bytes.size() < kEndSize) fail("a zip archive without an end");
  const uint64_t first = bytes.size() - std::min<uint64_t>(bytes.size(), kEndSize + kLongestComment);
  uint64_t end = bytes.size() - kEndSize;
  while (number_at<uint32_t>(bytes, end) != kEnd) {
    if (end == first) fail("its zip archive has no directory");
    --end;
  }
  uint64_t count = *number_at<uint16_t>(bytes, end + 10);
  uint64_t size = *number_at<uint32_t>(bytes, end + 12);
  uint64_t start = *number_at<uint32_t>(bytes, end + 16);
  if (end >= 20 && number_at<uint32_t>(bytes, end - 20) == kEnd64Locator) {
    const uint64_t end64 = number_at<uint64_t>(bytes, end - 12).value_or(0);
    if (number_at<uint32_t>(bytes, end64) != kEnd64) fail("the end of its directory is not where it should be");
    count = number_at<uint64_t>(bytes, end64 + 32).value_or(0);
    size = number_at<uint64_t>(bytes, end64 + 40).value_or(0);
    start = number_at<uint64_t>(bytes, end64 + 48).value_or(0);
  }
  const std::string_view directory = part_of(bytes, start, size);
  if (directory.size() != size) fail("its directory lies outside of the file");
  uint64_t at = 0;
  for (uint64_t i = 0; i < count; ++i) read_entry(directory, at);
}

void ZipFile::read_entry(std::string_view directory, uint64_t& at) {
  constexpr uint64_t kEntrySize = 46;
  const std::string_view entry = part_of(directory, at, kEntrySize);
  if (entry.empty() || number_at<uint32_t>(entry, 0) != kDirectoryEntry) fail("its directory has a wrong entry");
  const uint16_t flags = *number_at<uint16_t>(entry, 8);
  const uint16_t method = *number_at<uint16_t>(entry, 10);
  Member member{.crc = *number_at<uint32_t>(entry, 16)};
  uint64_t packed = *number_at<uint32_t>(entry, 20);
  member.size = *number_at<uint32_t>(entry, 24);
  const uint64_t name_size = *number_at<uint16_t>(entry, 28);
  const uint64_t extra_size = *number_at<uint16_t>(entry, 30);
  const uint64_t comment_size = *number_at<uint16_t>(entry, 32);
  uint64_t local = *number_at<uint32_t>(entry, 42);
  at += kEntrySize;
  const std::string name(part_of(directory, at, name_size));
  const std::string_view extra = part_of(directory, at + name_size, extra_size);
  if (name.size() != name_size || extra.size() != extra_size) fail("its directory has a wrong entry");
  at += name_size + extra_size + comment_size;

  for (uint64_t field = 0; field + 4 <= extra.size();) {
    const uint16_t kind = *number_at<uint16_t>(extra, field);
    const uint64_t length = *number_at<uint16_t>(extra, field + 2);
    if (kind == kExtra64) {
      const std::string_view numbers = part_of(extra, field + 4, length);
      uint64_t next = 0;
      for (uint64_t* number : {&member.size, &packed, &local}) {
        if (*number != kIn64) continue;
        const auto wide = number_at<uint64_t>(numbers, next);
        if (!wide) fail(fmt::format("the size of its member '{}' is missing", name));
        *number = *wide;
        next += sizeof(uint64_t);
      }
    }
    field += 4 + length;
  }
  if (!name.empty() && name.back() == '/') return;  // a folder
  member.is_stored = method == 0 && (flags & 1U) == 0 && packed == member.size;
  constexpr uint64_t kLocalSize = 30;
  const auto local_name = number_at<uint16_t>(bytes_, local > bytes_.size() ? bytes_.size() : local + 26);
  const auto local_extra = number_at<uint16_t>(bytes_, local > bytes_.size() ? bytes_.size() : local + 28);
  if (number_at<uint32_t>(bytes_, local) != kLocalHeader || !local_name || !local_extra)
    fail(fmt::format("its member '{}' is not where the directory says", name));
  member.offset = local + kLocalSize + *local_name + *local_extra;
  if (member.offset > bytes_.size() || packed > bytes_.size() - member.offset)
    fail(fmt::format("its member '{}' lies outside of the file", name));
  packed_ += packed;
  if (packed_ > bytes_.size()) fail(fmt::format("its member '{}' overlaps others", name));
  if (!members_.emplace(name, member).second) fail(fmt::format("it has two members '{}'", name));
}

std::string_view ZipFile::checked(std::string_view name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) fail(fmt::format("its member '{}' is missing", name));
  const Member& member = found->second;
  if (!member.is_stored)
    throw Error("weights", fmt::format("{} is a zip archive whose member '{}' is compressed or encrypted; valid: what "
                                       "torch.save writes, which is neither",
                                       path_, name));
  const std::string_view bytes = bytes_.substr(member.offset, member.size);
  const auto crc = crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  if (static_cast<uint32_t>(crc) != member.crc) fail(fmt::format("the checksum of its member '{}' differs", name));
  return bytes;
}

}  // namespace levin
