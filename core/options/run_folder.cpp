#include <levin/core/options/run_folder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/type_name.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/options/options.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <typeinfo>

namespace levin {
namespace {

/// One spelling for all paths of a folder.
std::string normal(const std::filesystem::path& path) {
  std::string text = path.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

FolderChoice chosen(const TrainerOptions& options, const LoggerFolder& folder) {
  const std::filesystem::path root(folder.save_dir.empty() ? options.default_root_dir : folder.save_dir);
  FolderChoice choice{.root = normal(root / folder.name)};
  if (folder.version.empty()) return choice;
  const bool is_number = std::ranges::all_of(folder.version, [](char c) { return c >= '0' && c <= '9'; });
  choice.path = normal(std::filesystem::path(choice.root) / ((is_number ? "version_" : "") + folder.version));
  return choice;
}

}  // namespace

FolderChoice run_folder(const TrainerOptions& options, const std::vector<std::shared_ptr<Logger>>& loggers) {
  if (!options.run_dir.empty()) return {.root = options.default_root_dir, .path = options.run_dir};
  for (const auto& logger : loggers) {
    const std::optional<LoggerFolder> folder = logger->folder();
    if (!folder) continue;
    if (folder->is_given()) return chosen(options, *folder);
    break;
  }
  return {.root = options.default_root_dir};
}

FolderChoice logger_folder(const TrainerOptions& options, const Logger& logger, const FolderChoice& of_run) {
  const std::optional<LoggerFolder> folder = logger.folder();
  if (!folder || !folder->is_given()) return of_run;
  FolderChoice choice = chosen(options, *folder);
  const bool is_that_of_run = choice.path.empty() ? of_run.path.empty() && choice.root == normal(of_run.root)
                                                  : choice.path == normal(of_run.path);
  return is_that_of_run ? of_run : choice;
}

void refuse_shared_folders(const TrainerOptions& options, const std::vector<std::shared_ptr<Logger>>& loggers,
                           const FolderChoice& of_run) {
  for (size_t i = 0; i < loggers.size(); ++i) {
    if (!loggers[i]->folder()) continue;
    const FolderChoice folder = logger_folder(options, *loggers[i], of_run);
    for (size_t j = 0; j < i; ++j) {
      const Logger& logger = *loggers[i];
      const Logger& earlier = *loggers[j];
      if (typeid(logger) != typeid(earlier) || logger_folder(options, earlier, of_run) != folder) continue;
      throw ConfigError(fmt::format(
          "trainer.logger[{}] and trainer.logger[{}] are of one class, {}, and write files of the same names "
          "into one folder, {}; hint: give one of them another name or version",
          j, i, short_class_name(typeid(logger)),
          folder.path.empty() ? "a new version_N below " + folder.root : folder.path));
    }
  }
}

}  // namespace levin
