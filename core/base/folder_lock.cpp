#include <levin/core/base/folder_lock.h>

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace levin {

FolderLock lock_folder(const std::string& path, Descriptor& folder) {
  folder = Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder.is_open()) return FolderLock::kImpossible;
  if (::flock(folder.number(), LOCK_EX | LOCK_NB) == 0) return FolderLock::kTaken;
  return errno == EWOULDBLOCK ? FolderLock::kHeldByAnother : FolderLock::kImpossible;
}

}  // namespace levin
