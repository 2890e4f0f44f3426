#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace levin {

/// Returns a whole number of 64 bits. nlohmann's own get<int64_t>() takes 0.5 for 0, and what 1e300 becomes is not
/// defined. Throws what get() throws for values of other types.
inline int64_t integer_of(const nlohmann::json& value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())))
    throw nlohmann::json::type_error::create(302, "expected a whole number of 64 bits", &value);
  return value.get<int64_t>();
}

/// The same of each value of an array.
inline std::vector<int64_t> integers_of(const nlohmann::json& values) {
  if (!values.is_array()) throw nlohmann::json::type_error::create(302, "expected whole numbers", &values);
  std::vector<int64_t> integers;
  for (const nlohmann::json& value : values) integers.push_back(integer_of(value));
  return integers;
}

}  // namespace levin
