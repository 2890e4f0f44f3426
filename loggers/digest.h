#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace levin {

/// Hexadecimal SHA-256 of `data`.
std::string sha256_hex(std::string_view data);
/// Hexadecimal MD5 of `data`.
std::string md5_hex(std::string_view data);
/// MD5 of a file's bytes in base 64, as W&B and object stores name it. Throws levin::Error when it cannot be read, and
/// soon after `stop` becomes true.
std::string md5_base64_of_file(const std::string& path, const std::atomic<bool>& stop);

}  // namespace levin
