#include <levin/loggers/kept_files.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace levin {

std::vector<std::string> keep_files(const std::string& directory, const std::string& kept) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  if (fs::is_directory(directory, error)) {
    for (fs::recursive_directory_iterator item(directory, error), end; !error && item != end; item.increment(error))
      if (item->is_regular_file(error)) names.push_back(item->path().lexically_relative(directory).string());
  } else if (!error) {
    names.push_back(fs::path(directory).filename().string());
  }
  if (error) throw Error("files", fmt::format("cannot read {}: {}", directory, error.message()));
  std::sort(names.begin(), names.end());
  for (const auto& name : names) {
    const fs::path from = fs::is_directory(directory) ? fs::path(directory) / name : fs::path(directory);
    const fs::path to = fs::path(kept) / name;
    FileSystem::current().create_directories(to.parent_path().string());
    fs::remove(to, error);
    fs::create_hard_link(from, to, error);
    if (error && fs::exists(from)) fs::create_symlink(fs::absolute(from), to, error);
    if (error) throw Error("files", fmt::format("cannot link {} into {}: {}", from.string(), kept, error.message()));
  }
  return names;
}

}  // namespace levin
