#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levin::data {

/// A file in a tar archive.
struct TarMember {
  std::string name = {};
  int64_t offset = 0;  ///< of its first byte, in the archive
  int64_t size = 0;    ///< bytes
};

/// Lists the regular files in a tar archive (ustar, GNU's and POSIX's long names and sizes), in order. Only headers are
/// read. Throws levin::Error where the archive is compressed, damaged or cut off: also where its end mark is missing,
/// which is all that shows when it was cut between two files.
std::vector<TarMember> index_tar(const std::string& path);

}  // namespace levin::data
