#include <levin/core/data/cache/example_cache.h>

#include <fmt/format.h>
#include <sys/stat.h>

namespace levin::data {

std::string version_of_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  return fmt::format("{} bytes of {}.{:09}\n", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

}  // namespace levin::data
