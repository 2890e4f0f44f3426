#pragma once

#include <string>

namespace levin {

/// Writes what a profiler has to say into a new file `stem` + `extension` of a folder, `stem`_2 and so on where that
/// name is taken. Makes the folder. Returns the path; empty, with a warning, where it cannot be written.
std::string write_profile(const std::string& directory, const std::string& stem, const std::string& extension,
                          const std::string& text);

}  // namespace levin
