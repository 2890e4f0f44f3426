#include <levin/core/checkpoint/pending_directory.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/folder_lock.h>
#include <levin/core/base/log.h>

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

namespace levin {
namespace {

constexpr std::string_view kMark = ".tmp-";

/// How long nothing in a folder changes before it is nobody's, where locks say nothing.
constexpr std::chrono::hours kAbandonedAfter{24};

/// What tells this run of this machine's kernel, in all containers, from every other one.
const std::string& kernel() {
  static const std::string name = [] {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    return id.empty() ? "unknown" : id.substr(0, 8);
  }();
  return name;
}

/// The kernel in the name of a temporary folder, `.NAME.tmp-KERNEL-PID-N`.
std::optional<std::string> kernel_of(std::string_view name) {
  const size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string_view::npos) return {};
  const std::string_view rest = name.substr(mark + kMark.size());
  const size_t first = rest.find('-');
  const size_t second = first == std::string_view::npos ? first : rest.find('-', first + 1);
  if (second == std::string_view::npos) return {};
  return std::string(rest.substr(0, first));
}

bool is_abandoned(const std::string& path) {
  std::error_code error;
  auto newest = std::filesystem::last_write_time(path, error);
  for (std::filesystem::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error))
    if (const auto time = entry->last_write_time(error); !error) newest = std::max(newest, time);
  return !error && decltype(newest)::clock::now() - newest > kAbandonedAfter;
}

void remove_leftovers(FileSystem& files, const std::string& parent) {
  for (const auto& name : files.list(parent)) {
    const auto writer = kernel_of(name);
    if (!writer) continue;
    const std::string path = parent + "/" + name;
    Descriptor folder;
    const FolderLock locked = lock_folder(path, folder);
    const bool is_dead = *writer == kernel() && locked == FolderLock::kTaken;
    if (!is_dead && (locked == FolderLock::kHeldByAnother || !is_abandoned(path))) continue;
    try {
      files.remove_all(path);
    } catch (const Error& error) {
      log::warning_once(fmt::format("cannot remove what an interrupted save left behind: {}", error.what()));
    }
  }
}

/// After a power cut a folder is there if those above it were synced since it was made, whoever made them.
void sync_folders_above(FileSystem& files, const std::string& folder) {
  try {
    for (auto path = std::filesystem::absolute(folder); path.has_relative_path();) {
      path = path.parent_path();
      files.sync_directory(path.string());
    }
  } catch (const Error&) {
    // One that this user may not open was there before.
  }
}

}  // namespace

PendingDirectory::PendingDirectory(const std::string& final_path) {
  std::filesystem::path path = std::filesystem::path(final_path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  if (name.empty() || name == "." || name == "..")
    throw Error("files",
                fmt::format("cannot write a folder at '{}'; valid: a path that ends with its name", final_path));
  parent_ = path.has_parent_path() ? path.parent_path().string() : ".";
  final_path_ = path.string();

  FileSystem& files = FileSystem::current();
  if (!files.exists(parent_)) {
    files.create_directories(parent_);
    sync_folders_above(files, parent_);
  }
  remove_leftovers(files, parent_);
  static std::atomic<int64_t> counter = 0;
  while (true) {
    path_ = fmt::format("{}/.{}{}{}-{}-{}", parent_, name, kMark, kernel(), ::getpid(), counter++);
    if (!files.create_directory(path_)) continue;
    // Until it is locked, another process may take it for a leftover.
    const FolderLock locked = lock_folder(path_, lock_);
    if (locked != FolderLock::kHeldByAnother && files.exists(path_)) return;
  }
}

PendingDirectory::~PendingDirectory() {
  try {
    FileSystem& files = FileSystem::current();
    if (files.exists(path_)) files.remove_all(path_);
  } catch (const Error& error) {
    log::warning(fmt::format("cannot remove a folder that is no longer needed: {}", error.what()));
  }
}

void PendingDirectory::commit() {
  FileSystem::current().sync_directory(path_);
  put_in_place();
}

void PendingDirectory::put_in_place() {
  FileSystem& files = FileSystem::current();
  const bool replaces = files.exists(final_path_);
  // It gets the temporary folder's name, and may have to go back.
  Descriptor replaced;
  if (replaces) lock_folder(final_path_, replaced);
  if (replaces)
    files.exchange(path_, final_path_);
  else
    files.rename(path_, final_path_);
  try {
    files.sync_directory(parent_);
  } catch (const Error&) {
    // The new folder may not survive a power cut, so the save has failed and the old one goes back.
    if (replaces)
      files.exchange(path_, final_path_);
    else
      files.rename(final_path_, path_);
    throw;
  }
}

}  // namespace levin
