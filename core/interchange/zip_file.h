#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace levin {

/// The directory of a zip archive in memory, checked: each member lies whole inside of the archive, and they do not
/// share bytes. ZIP64 too.
class ZipFile {
 public:
  struct Member {
    uint64_t offset = 0;  ///< of its first byte
    uint64_t size = 0;
    uint32_t crc = 0;       ///< as the archive says
    bool is_stored = true;  ///< neither compressed nor encrypted
  };

  /// `bytes` outlive this; `path` is for messages. Throws levin::Error for what is no whole archive.
  ZipFile(std::string_view bytes, const std::string& path);

  const std::map<std::string, Member, std::less<>>& members() const { return members_; }
  /// Returns a member's bytes; throws levin::Error where there is none of that name, it is compressed, or the checksum
  /// differs.
  std::string_view checked(std::string_view name) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void read_entry(std::string_view directory, uint64_t& at);

  std::string_view bytes_;
  std::string path_;
  uint64_t packed_ = 0;  ///< bytes of the members in the archive
  std::map<std::string, Member, std::less<>> members_;
};

}  // namespace levin
