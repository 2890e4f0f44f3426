#include <levin/strategies/launchers/outcome_folder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/folder_lock.h>

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace levin {
namespace {

/// Containers often have a /dev/shm of 64 MiB, too little for the weights of many models.
constexpr uint64_t kRoomInMemory = uint64_t{1} << 30;

constexpr const char* kName = "levin-outcome-";

/// Removes what killed programs of this user left behind.
void remove_leftovers(const std::string& parent) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    struct stat status {};
    const std::string path = entry->path();
    if (!entry->path().filename().string().starts_with(kName) || ::lstat(path.c_str(), &status) != 0 ||
        status.st_uid != ::geteuid())
      continue;
    Descriptor lock;
    std::error_code ignored;
    if (lock_folder(path, lock) == FolderLock::kTaken) std::filesystem::remove_all(path, ignored);
  }
}

/// Makes the folder, which `lock` keeps; returns its path, or nothing.
std::string make_folder_in(const std::string& parent, Descriptor& lock) {
  remove_leftovers(parent);
  while (true) {
    std::string path = fmt::format("{}/{}{}-XXXXXX", parent, kName, getpid());
    if (mkdtemp(path.data()) == nullptr) return "";
    // Until it is locked, another process may take it for a leftover.
    if (lock_folder(path, lock) != FolderLock::kHeldByAnother && std::filesystem::exists(path)) return path;
  }
}

std::string temporary_folder() {
  try {
    return std::filesystem::temp_directory_path();
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error("ranks", fmt::format("there is no folder {} for the results of ranks: {}; hint: TMPDIR names another "
                                     "place",
                                     error.path1().string(), error.code().message()));
  }
}

bool has_room(const char* folder) {
  struct statvfs status {};
  return statvfs(folder, &status) == 0 && uint64_t{status.f_bavail} * status.f_frsize >= kRoomInMemory;
}

}  // namespace

OutcomeFolder::OutcomeFolder() {
  if (has_room("/dev/shm")) path_ = make_folder_in("/dev/shm", lock_);
  if (!path_.empty()) return;
  const std::string parent = temporary_folder();
  path_ = make_folder_in(parent, lock_);
  if (path_.empty())
    throw Error("ranks", fmt::format("cannot make a folder for the results of ranks in {}: {}; hint: TMPDIR names "
                                     "another place",
                                     parent, std::generic_category().message(errno)));
}

void OutcomeFolder::remove() const {
  std::error_code error;
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts && std::filesystem::exists(path_, error); ++attempt)
    std::filesystem::remove_all(path_, error);
}

}  // namespace levin
