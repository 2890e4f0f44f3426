#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// The bytes of an IDX file of unsigned bytes.
inline std::string idx_bytes(const std::vector<uint32_t>& shape, const std::string& data) {
  std::string bytes{0, 0, 8, static_cast<char>(shape.size())};
  for (uint32_t size : shape)
    for (int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(size >> shift & 0xFF));
  return bytes + data;
}

inline void write_gzip(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

}  // namespace levin
