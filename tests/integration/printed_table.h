#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace levin {

/// The number in the line of a printed table that begins with a metric's name; NaN, and a failure, where there is none.
inline double value_of(const std::string& name, const std::string& table) {
  const size_t place = ("\n" + table).find("\n" + name + " ");
  EXPECT_NE(place, std::string::npos) << table;
  return place == std::string::npos ? std::nan("") : std::stod(table.substr(place + name.size()));
}

}  // namespace levin
