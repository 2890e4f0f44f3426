#pragma once

#include <string>
#include <vector>

namespace levin {

/// Makes a second folder of hard links to the files of `directory` (or to the one file that it is), copies where links
/// cannot be made, so that they stay readable whoever removes the first. Returns their paths relative to `kept`,
/// sorted. Throws levin::Error when a file can be neither linked nor copied.
std::vector<std::string> keep_files(const std::string& directory, const std::string& kept);

}  // namespace levin
