#include <levin/core/data/shards/tar_index.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

namespace levin::data {

namespace {

constexpr int64_t kBlock = 512;
/// Longest list of extended attributes that is believed.
constexpr int64_t kMostAttributes = int64_t{1} << 20;

using TarBlock = std::array<char, kBlock>;

class TarReader {
 public:
  explicit TarReader(const std::string& path) : path_(path), file_(open_regular_file(path, "data")) {
    struct stat status {};
    if (::fstat(file_.number(), &status) != 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    size_ = status.st_size;
  }

  std::vector<TarMember> members() {
    std::vector<TarMember> found;
    std::optional<std::string> long_name;
    std::optional<int64_t> long_size;
    if (size_ == 0) fail("is empty");
    refuse_compressed();
    TarBlock header{};
    for (;;) {
      read(position_, header.data(), kBlock, "ends without its end mark");
      if (is_zero(header)) break;
      check(header);
      const char type = header[156];
      int64_t size = long_size && type != 'x' && type != 'L' ? *long_size : number(header, 124, 12, "size");
      const int64_t begin = position_ + kBlock;
      // Links and folders have no bytes, whatever they say.
      if (type >= '1' && type <= '6') size = 0;
      if (size < 0 || size > size_ - begin)
        fail(fmt::format("is cut off: '{}' should have {} bytes, {} are left", long_name ? *long_name : name(header),
                         size, std::max<int64_t>(size_ - begin, 0)));
      position_ = begin + (size + kBlock - 1) / kBlock * kBlock;
      if (type == 'L') {
        long_name = content(begin, size);
        long_name->resize(std::min(long_name->find('\0'), long_name->size()));
        continue;
      }
      if (type == 'x') {
        read_attributes(content(begin, size), long_name, long_size);
        continue;
      }
      if (type == 'K' || type == 'g') continue;  // of links, and of all files: no names or sizes
      if (type == 'S') fail(fmt::format("has the sparse file '{}'; hint: tar without --sparse", name(header)));
      if (type == '0' || type == '\0' || type == '7')
        found.push_back({.name = long_name ? *long_name : name(header), .offset = begin, .size = size});
      long_name.reset();
      long_size.reset();
    }
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("data", fmt::format("the tar file {} {}", path_, what));
  }

  void read(int64_t offset, char* bytes, int64_t count, const std::string& at_end) const {
    int64_t done = 0;
    while (done < count) {
      const ssize_t got = ::pread(file_.number(), bytes + done, static_cast<size_t>(count - done), offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
      if (got == 0) fail(fmt::format("is cut off: it {} at byte {}", at_end, offset + done));
      done += got;
    }
  }

  /// Of any size: a compressed file may be shorter than a header.
  void refuse_compressed() const {
    std::string start(static_cast<size_t>(std::min<int64_t>(size_, 6)), '\0');
    read(0, start.data(), static_cast<int64_t>(start.size()), "ends");
    if (start.starts_with("\x1f\x8b")) fail("is compressed; hint: gunzip it: samples are read out of order");
    if (start.starts_with("\x28\xb5\x2f\xfd") || start.starts_with("BZh") ||
        start.starts_with("\xfd"
                          "7zXZ"))
      fail("is compressed; hint: unpack it: samples are read out of order");
  }

  static bool is_zero(const TarBlock& header) {
    return std::all_of(header.begin(), header.end(), [](char byte) { return byte == 0; });
  }

  void check(const TarBlock& header) const {
    int64_t sum = 0;
    for (size_t i = 0; i < header.size(); ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(header[i]);
    if (sum != number(header, 148, 8, "checksum"))
      fail(position_ == 0 ? std::string("is no tar file")
                          : fmt::format("is damaged: the header at byte {} has another checksum", position_));
  }

  /// Digits to the base 8, or bytes to the base 256 where the first has its highest bit set.
  int64_t number(const TarBlock& header, size_t begin, size_t length, const char* what) const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(header.data() + begin);
    uint64_t value = 0;
    if ((bytes[0] & 0x80) != 0) {
      for (size_t i = 0; i < length; ++i) {
        if (value >> 54 != 0)
          fail(
              fmt::format("is damaged: the {} at byte {} is too large", what, position_ + static_cast<int64_t>(begin)));
        value = value << 8 | (i == 0 ? bytes[0] & 0x7f : bytes[i]);
      }
      return static_cast<int64_t>(value);
    }
    std::string_view digits(header.data() + begin, length);
    while (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);
    while (!digits.empty() && (digits.back() == ' ' || digits.back() == '\0')) digits.remove_suffix(1);
    for (const char digit : digits) {
      if (digit < '0' || digit > '7')
        fail(position_ == 0 ? std::string("is no tar file")
                            : fmt::format("is damaged: the {} at byte {} is no number", what,
                                          position_ + static_cast<int64_t>(begin)));
      value = value << 3 | static_cast<uint64_t>(digit - '0');
    }
    return static_cast<int64_t>(value);
  }

  static std::string text(const TarBlock& header, size_t begin, size_t length) {
    const std::string_view field(header.data() + begin, length);
    return std::string(field.substr(0, field.find('\0')));
  }

  static std::string name(const TarBlock& header) {
    const std::string plain = text(header, 0, 100);
    const bool is_ustar = std::string_view(header.data() + 257, 6) == std::string_view("ustar\0", 6);
    const std::string prefix = is_ustar ? text(header, 345, 155) : std::string();
    return prefix.empty() ? plain : prefix + "/" + plain;
  }

  std::string content(int64_t begin, int64_t size) const {
    if (size > kMostAttributes) fail(fmt::format("is damaged: the attributes at byte {} have {} bytes", begin, size));
    std::string bytes(static_cast<size_t>(size), '\0');
    read(begin, bytes.data(), size, "ends");
    return bytes;
  }

  /// Lines "LENGTH KEY=VALUE" with the length of the line.
  void read_attributes(const std::string& bytes, std::optional<std::string>& name, std::optional<int64_t>& size) const {
    std::string_view left = bytes;
    while (!left.empty()) {
      size_t length = 0;
      const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), length);
      const auto digits = static_cast<size_t>(end - left.data());
      const std::string_view line = left.substr(0, std::min(length, left.size()));
      const size_t equals = line.find('=');
      if (error != std::errc() || length > left.size() || length < digits + 2 || left[digits] != ' ' ||
          line.back() != '\n' || equals == std::string_view::npos || equals < digits + 1)
        fail(fmt::format("is damaged: the attributes before byte {} are none", position_));
      const std::string_view key = line.substr(digits + 1, equals - digits - 1);
      const std::string_view value = line.substr(equals + 1, line.size() - equals - 2);
      if (key == "path") name = std::string(value);
      if (key == "size") {
        int64_t given = 0;
        const auto [last, wrong] = std::from_chars(value.data(), value.data() + value.size(), given);
        if (wrong != std::errc() || last != value.data() + value.size() || given < 0)
          fail(fmt::format("is damaged: the size in the attributes before byte {} is no number", position_));
        size = given;
      }
      if (key.starts_with("GNU.sparse.")) fail("has a sparse file; hint: tar without --sparse");
      left.remove_prefix(length);
    }
  }

  const std::string& path_;
  Descriptor file_;
  int64_t size_ = 0;
  int64_t position_ = 0;  ///< of the header that is read
};

}  // namespace

std::vector<TarMember> index_tar(const std::string& path) { return TarReader(path).members(); }

}  // namespace levin::data
