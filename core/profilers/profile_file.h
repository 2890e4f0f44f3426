#pragma once

#include <string>

namespace levin {

/// Writes a profiler's text to a new file `stem` + `extension` in a folder, `stem`_2 and so on when that name is taken.
/// Makes the folder. Returns the path; empty, with a warning, when it cannot be written.
std::string write_profile(const std::string& directory, const std::string& stem, const std::string& extension,
                          const std::string& text);

}  // namespace levin
