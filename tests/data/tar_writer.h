#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace levin::testing {

/// Builds a tar file in memory.
class TarWriter {
 public:
  TarWriter& add(const std::string& name, const std::string& content) {
    std::string header(512, '\0');
    const auto put = [&](size_t place, const std::string& text) { header.replace(place, text.size(), text); };
    put(0, name);
    put(100, "0000644");
    put(124, fmt::format("{:011o}", content.size()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, std::string("ustar\0"
                         "00",
                         8));
    uint64_t sum = 0;
    for (const char byte : header) sum += static_cast<unsigned char>(byte);
    put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
    bytes_ += header + content;
    bytes_.resize((bytes_.size() + 511) / 512 * 512, '\0');
    return *this;
  }
  /// The file, with its end mark.
  std::string str() const { return bytes_ + std::string(1024, '\0'); }
  /// The file without its end mark.
  const std::string& open_end() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace levin::testing
