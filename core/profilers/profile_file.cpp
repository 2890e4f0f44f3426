#include <levin/core/profilers/profile_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>

#include <fmt/format.h>

#include <cstdint>

namespace levin {

std::string write_profile(const std::string& directory, const std::string& stem, const std::string& extension,
                          const std::string& text) {
  FileSystem& files = FileSystem::current();
  try {
    files.create_directories(directory);
    std::string path = fmt::format("{}/{}{}", directory, stem, extension);
    for (int64_t number = 2; files.exists(path); ++number)
      path = fmt::format("{}/{}_{}{}", directory, stem, number, extension);
    files.replace_file(path, text);
    return path;
  } catch (const Error& error) {
    log::warning(fmt::format("the profile was not written: {}", error.what()));
    return "";
  }
}

}  // namespace levin
