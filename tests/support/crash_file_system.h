#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace levin::testing {

/// The real file system, which knows at each moment what a machine would find on its disk if the power failed now. In
/// use (FileSystem::current()) as long as it lives. What POSIX promises is all that counts: bytes are on the disk once
/// their file was synced, a name (made, renamed or removed) once the folder that holds it was synced.
///
///     CrashFileSystem files(folder);         // what is below the folder is followed; it is empty and on the disk
///     files.after_operation = [&] { files.write_disk(image, CrashFileSystem::Luck::kBad); ... };
class CrashFileSystem : public FileSystem {
 public:
  /// What became of operations that nobody waited for.
  enum class Luck {
    kBad,    ///< none of them is on the disk
    kNames,  ///< all names are, and no bytes: files that were not synced are empty, or as they were
  };

  explicit CrashFileSystem(std::string root) : root_(std::move(root)) { FileSystem::replace(this); }
  ~CrashFileSystem() override { FileSystem::replace(nullptr); }
  CrashFileSystem(const CrashFileSystem&) = delete;
  CrashFileSystem& operator=(const CrashFileSystem&) = delete;

  /// Called after each operation that changes anything.
  std::function<void()> after_operation = [] {};

  /// Writes into a new folder what the disk would have.
  void write_disk(const std::string& folder, Luck luck) const {
    std::filesystem::remove_all(folder);
    write_node(disk_, folder, luck);
  }

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    auto file = FileSystem::create(path);
    auto node = std::make_shared<Node>();
    folder_of(path).entries[name_of(path)] = node;
    after_operation();
    return std::make_unique<File>(*this, std::move(node), std::move(file));
  }
  std::unique_ptr<WritableFile> open_append(const std::string& path) override {
    auto file = FileSystem::open_append(path);
    auto& node = folder_of(path).entries[name_of(path)];
    if (node == nullptr) node = std::make_shared<Node>();
    after_operation();
    return std::make_unique<File>(*this, node, std::move(file));
  }
  void create_directories(const std::string& path) override {
    FileSystem::create_directories(path);
    folder_at(path);
    after_operation();
  }
  bool create_directory(const std::string& path) override {
    const bool made = FileSystem::create_directory(path);
    folder_at(path);
    after_operation();
    return made;
  }
  void rename(const std::string& from, const std::string& to) override {
    FileSystem::rename(from, to);
    folder_of(to).entries[name_of(to)] = folder_of(from).entries.at(name_of(from));
    folder_of(from).entries.erase(name_of(from));
    after_operation();
  }
  void exchange(const std::string& a, const std::string& b) override {
    FileSystem::exchange(a, b);
    std::swap(folder_of(a).entries.at(name_of(a)), folder_of(b).entries.at(name_of(b)));
    after_operation();
  }
  void remove_all(const std::string& path) override {
    FileSystem::remove_all(path);
    folder_of(path).entries.erase(name_of(path));
    after_operation();
  }
  void sync_directory(const std::string& path) override {
    FileSystem::sync_directory(path);
    // What is above the followed folder is on the disk.
    if (is_below_root(path)) {
      Node& folder = folder_at(path);
      folder.entries_on_disk = folder.entries;
    }
    after_operation();
  }

 private:
  /// A file or a folder, as programs see it and as the disk has it.
  struct Node {
    bool is_folder = false;
    std::string bytes;
    std::string bytes_on_disk;
    std::map<std::string, std::shared_ptr<Node>> entries;
    std::map<std::string, std::shared_ptr<Node>> entries_on_disk;
  };

  class File : public WritableFile {
   public:
    File(CrashFileSystem& owner, std::shared_ptr<Node> node, std::unique_ptr<WritableFile> file)
        : owner_(owner), node_(std::move(node)), file_(std::move(file)) {}

    using WritableFile::append;

    void append(const void* data, size_t size) override {
      file_->append(data, size);
      node_->bytes.append(static_cast<const char*>(data), size);
      owner_.after_operation();
    }
    void flush() override { file_->flush(); }
    void sync() override {
      file_->sync();
      node_->bytes_on_disk = node_->bytes;
      owner_.after_operation();
    }
    void close() override { file_->close(); }

   private:
    CrashFileSystem& owner_;
    const std::shared_ptr<Node> node_;
    const std::unique_ptr<WritableFile> file_;
  };

  static std::string name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

  bool is_below_root(const std::string& path) const {
    const std::string below = std::filesystem::path(path).lexically_relative(root_).string();
    return !below.empty() && !below.starts_with("..");
  }
  Node& folder_of(const std::string& path) { return folder_at(std::filesystem::path(path).parent_path().string()); }
  /// Makes it, and those above it, where they are new.
  Node& folder_at(const std::string& path) {
    if (!is_below_root(path)) throw Error("test", path + " is not below " + root_);
    Node* node = &disk_;
    for (const auto& part : std::filesystem::path(path).lexically_relative(root_)) {
      if (part == "." || part.empty()) continue;
      auto& entry = node->entries[part.string()];
      if (entry == nullptr) entry = std::make_shared<Node>(Node{.is_folder = true});
      node = entry.get();
    }
    return *node;
  }

  static void write_node(const Node& node, const std::string& path, Luck luck) {
    if (!node.is_folder) {
      std::ofstream(path, std::ios::binary) << node.bytes_on_disk;
      return;
    }
    std::filesystem::create_directory(path);
    for (const auto& [name, entry] : luck == Luck::kBad ? node.entries_on_disk : node.entries)
      write_node(*entry, path + "/" + name, luck);
  }

  const std::string root_;
  Node disk_{.is_folder = true};
};

}  // namespace levin::testing
