#pragma once

#include <cstddef>
#include <string>

namespace levin {

/// Draws `length` lower-case letters and digits from the operating system: no two are alike, whatever the seeds of a
/// run.
std::string random_id(size_t length);

}  // namespace levin
