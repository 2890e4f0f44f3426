#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {

/// A zip archive of files that are stored as they are.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string bytes;
  std::string directory;
  const auto number = [](std::string& to, uint64_t value, int size) {
    for (int i = 0; i < size; ++i) to += static_cast<char>(value >> 8 * i & 0xff);
  };
  for (const auto& [name, content] : files) {
    // From the version on, up to the length of the extra field.
    std::string common;
    number(common, 20, 2);
    number(common, 0, 8);  // no flags, stored, no time
    number(common, crc32_z(0, reinterpret_cast<const unsigned char*>(content.data()), content.size()), 4);
    number(common, content.size(), 4);
    number(common, content.size(), 4);
    number(common, name.size(), 2);
    number(common, 0, 2);
    directory += "PK\1\2";
    number(directory, 20, 2);
    directory += common;
    number(directory, 0, 2);  // no comment
    number(directory, 0, 8);
    number(directory, bytes.size(), 4);
    directory += name;
    bytes += "PK\3\4" + common + name + content;
  }
  const size_t begin = bytes.size();
  bytes += directory + "PK\5\6";
  number(bytes, 0, 4);
  number(bytes, files.size(), 2);
  number(bytes, files.size(), 2);
  number(bytes, directory.size(), 4);
  number(bytes, begin, 4);
  number(bytes, 0, 2);
  return bytes;
}

}  // namespace levin::testing
