#pragma once

#include <string>

namespace levin::sweep {

/// Writes a file beside it and renames it, so that at every moment the file is whole. Throws levin::Error.
void replace_file(const std::string& path, const std::string& text);

}  // namespace levin::sweep
