#include <levin/core/sweep/replace_file.h>

#include <levin/core/base/file_system.h>

namespace levin::sweep {

void replace_file(const std::string& path, const std::string& text) {
  auto& files = FileSystem::current();
  const std::string unfinished = path + ".unfinished";
  const auto file = files.create(unfinished);
  file->append(text);
  file->close();
  files.rename(unfinished, path);
}

}  // namespace levin::sweep
