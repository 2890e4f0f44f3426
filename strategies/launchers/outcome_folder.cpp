#include <levin/strategies/launchers/outcome_folder.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace levin {
namespace {

/// Containers often have a /dev/shm of 64 MiB, too little for the weights of many models.
constexpr uint64_t kRoomInMemory = uint64_t{1} << 30;

/// The folder made, or nothing.
std::string make_folder_in(const std::string& parent) {
  std::string path = fmt::format("{}/levin-outcome-{}-XXXXXX", parent, getpid());
  return mkdtemp(path.data()) == nullptr ? "" : path;
}

bool has_room(const char* folder) {
  struct statvfs status {};
  return statvfs(folder, &status) == 0 && uint64_t{status.f_bavail} * status.f_frsize >= kRoomInMemory;
}

}  // namespace

OutcomeFolder::OutcomeFolder() {
  if (has_room("/dev/shm")) path_ = make_folder_in("/dev/shm");
  if (!path_.empty()) return;
  const std::string parent = std::filesystem::temp_directory_path();
  path_ = make_folder_in(parent);
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
