#pragma once

#include <levin/core/base/descriptor.h>

#include <string>

namespace levin {

/// What became of an attempt to take a folder's lock.
enum class FolderLock { kTaken, kHeldByAnother, kImpossible };

/// Takes the lock of a folder (flock), which `folder` holds, and copies of it in processes forked from this one. The
/// kernel gives it back when all of them are gone, however they ended; so a temporary folder whose lock can be taken is
/// one that its owner left behind. Process ids would not tell: each container has its own. Never waits.
FolderLock lock_folder(const std::string& path, Descriptor& folder);

}  // namespace levin
