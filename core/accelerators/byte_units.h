#pragma once

namespace levin {

inline constexpr double kMebibyte = 1 << 20;  ///< bytes
inline constexpr double kKibibytesInMebibyte = 1 << 10;

}  // namespace levin
