#pragma once

#include <string>
#include <vector>

namespace levin {

/// Makes a second folder of hard links to the files of `directory` (or to the one file that it is), so that they stay
/// readable whoever removes the first. Where hard links cannot be made, because `kept` is on another disk, they are
/// symbolic links, which lead nowhere once the first is removed, and to the new file once it is replaced: nothing is
/// copied, so that the call takes no longer for large files. Returns their paths relative to `kept`, sorted. Throws
/// levin::Error when a file can be linked neither way.
std::vector<std::string> keep_files(const std::string& directory, const std::string& kept);

}  // namespace levin
