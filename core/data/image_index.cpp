#include <levin/core/data/image_index.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace levin::data {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "levin image index 2";
constexpr std::array<std::string_view, 4> kExtensions = {".jpg", ".jpeg", ".png", ".webp"};

/// A folder that was read, with when it last changed: any file added, removed or renamed changes that.
struct ReadFolder {
  std::string path;  ///< below the root; empty: the root
  int64_t changed;   ///< nanoseconds
};

std::optional<int64_t> time_of_change(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return std::nullopt;
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

bool is_image(std::string_view name) {
  const size_t dot = name.rfind('.');
  // ._0.png is what macOS writes beside 0.png, and no image.
  if (dot == std::string_view::npos || name.starts_with("._")) return false;
  std::string extension(name.substr(dot));
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

/// Reads the folders of one root.
class Scan {
 public:
  explicit Scan(std::string root) { index_.root = std::move(root); }

  void run() {
    const std::vector<std::string> classes = read("").folders;
    std::vector<std::string> empty;
    for (const auto& name : classes) {
      std::vector<std::pair<std::string, std::vector<std::string>>> folders;
      collect(name, folders, 0);
      std::sort(folders.begin(), folders.end());
      const size_t before = index_.files.size();
      for (const auto& [folder, files] : folders)
        for (const auto& file : files) {
          index_.files.push_back(folder + "/" + file);
          index_.labels.push_back(static_cast<int64_t>(index_.classes.size()));
        }
      index_.classes.push_back(name);
      if (index_.files.size() == before) empty.push_back(name);
    }
    if (classes.empty())
      throw Error("data", fmt::format("there are no folders in {}; hint: each class of images has a folder of its own",
                                      index_.root));
    if (!empty.empty())
      throw Error("data", fmt::format("{} in {} {} no image: {}; valid: .jpg, .jpeg, .png, .webp",
                                      counted(static_cast<int64_t>(empty.size()), "folder"), index_.root,
                                      empty.size() == 1 ? "has" : "have", shortened(empty)));
    if (said_something_) log::info(fmt::format("{} has {} images", index_.root, index_.files.size()));
  }

  ImageIndex index_;
  std::vector<ReadFolder> folders_;

 private:
  struct Entries {
    std::vector<std::string> folders;
    std::vector<std::string> images;
  };

  static std::string shortened(std::vector<std::string> names) {
    constexpr size_t kMost = 5;
    const size_t count = names.size();
    names.resize(std::min(count, kMost));
    return join(names) + (count > kMost ? fmt::format(" and {} more", count - kMost) : "");
  }

  /// Reads one folder, sorted.
  Entries read(const std::string& folder) {
    const std::string path = folder.empty() ? index_.root : index_.root + "/" + folder;
    // Taken before its files are read: what is added meanwhile makes the index out of date.
    folders_.push_back({folder, time_of_change(path).value_or(0)});
    Entries entries;
    std::error_code error;
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      std::string name = at->path().filename().string();
      std::error_code ignored;
      if (at->is_directory(ignored)) {
        entries.folders.push_back(std::move(name));
      } else if (!folder.empty() && is_image(name)) {
        entries.images.push_back(std::move(name));
      } else {
        ++index_.num_other_files;
      }
      report_progress();
    }
    if (error) throw Error("data", fmt::format("cannot read the folder {}: {}", path, error.message()));
    std::sort(entries.folders.begin(), entries.folders.end());
    std::sort(entries.images.begin(), entries.images.end());
    return entries;
  }

  void collect(const std::string& folder, std::vector<std::pair<std::string, std::vector<std::string>>>& folders,
               int depth) {
    constexpr int kMostDepth = 50;
    if (depth > kMostDepth)
      throw Error("data", fmt::format("{}/{} is more than {} folders deep; hint: a link to a folder above it?",
                                      index_.root, folder, kMostDepth));
    Entries entries = read(folder);
    found_ += static_cast<int64_t>(entries.images.size());
    if (!entries.images.empty()) folders.emplace_back(folder, std::move(entries.images));
    for (const auto& inner : entries.folders) collect(folder + "/" + inner, folders, depth + 1);
  }

  void report_progress() {
    if (++read_entries_ % 1024 != 0) return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_report_) return;
    next_report_ = now + std::chrono::seconds(5);
    if (std::exchange(started_, true) == false) return;
    said_something_ = true;
    log::info(fmt::format("looking for images in {}: {} so far", index_.root, found_));
  }

  int64_t found_ = 0;
  int64_t read_entries_ = 0;
  bool started_ = false;
  bool said_something_ = false;
  std::chrono::steady_clock::time_point next_report_;
};

/// Lines of a file in memory.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}
  std::optional<std::string_view> next() {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }
  std::optional<int64_t> number() {
    const auto line = next();
    int64_t value = 0;
    if (!line || std::from_chars(line->data(), line->data() + line->size(), value).ec != std::errc())
      return std::nullopt;
    return value;
  }

 private:
  std::string_view rest_;
};

bool is_unchanged(const std::string& root, std::string_view line) {
  const size_t blank = line.find(' ');
  if (blank == std::string_view::npos) return false;
  int64_t changed = 0;
  if (std::from_chars(line.data(), line.data() + blank, changed).ec != std::errc()) return false;
  const std::string folder(line.substr(blank + 1));
  return time_of_change(folder.empty() ? root : root + "/" + folder) == changed;
}

/// The kept index, where it is whole and no folder has changed since.
std::optional<ImageIndex> load(const std::string& file, const std::string& root) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  Lines lines(text);
  if (lines.next() != kFirstLine || lines.next() != root) return std::nullopt;
  ImageIndex index;
  index.root = root;
  const auto others = lines.number();
  const auto folders = lines.number();
  if (!others || !folders) return std::nullopt;
  index.num_other_files = *others;
  for (int64_t i = 0; i < *folders; ++i) {
    const auto line = lines.next();
    if (!line || !is_unchanged(root, *line)) return std::nullopt;
  }
  const auto classes = lines.number();
  if (!classes) return std::nullopt;
  for (int64_t i = 0; i < *classes; ++i) {
    const auto name = lines.next();
    const auto count = lines.number();
    if (!name || !count) return std::nullopt;
    index.classes.emplace_back(*name);
    for (int64_t j = 0; j < *count; ++j) {
      const auto path = lines.next();
      if (!path) return std::nullopt;
      index.files.emplace_back(*path);
      index.labels.push_back(i);
    }
  }
  if (lines.next() != "end") return std::nullopt;
  return index;
}

/// Keeps the index; where that is not possible, the next program looks again. A name with a line break is not kept.
void keep(const std::string& file, const ImageIndex& index, const std::vector<ReadFolder>& folders) {
  std::string text = fmt::format("{}\n{}\n{}\n{}\n", kFirstLine, index.root, index.num_other_files, folders.size());
  size_t num_lines = 4;
  const auto add = [&](std::string_view line) {
    text.append(line).push_back('\n');
    ++num_lines;
  };
  for (const auto& folder : folders) add(fmt::format("{} {}", folder.changed, folder.path));
  add(std::to_string(index.classes.size()));
  size_t next = 0;
  for (size_t i = 0; i < index.classes.size(); ++i) {
    size_t end = next;
    while (end < index.labels.size() && index.labels[end] == static_cast<int64_t>(i)) ++end;
    add(index.classes[i]);
    add(std::to_string(end - next));
    for (; next < end; ++next) add(index.files[next]);
  }
  add("end");
  if (static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) != num_lines) return;
  std::error_code error;
  fs::create_directories(fs::path(file).parent_path(), error);
  const std::string pending = fmt::format("{}.{}", file, getpid());
  {
    std::ofstream stream(pending, std::ios::binary);
    stream << text;
    if (!stream.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(pending, file, error);
  if (error) fs::remove(pending, error);
}

}  // namespace

std::string default_index_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::string(cache) + "/levin";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/levin";
  return "";
}

ImageIndex index_images(const std::string& root, const std::string& cache_folder) {
  std::error_code error;
  const std::string whole = fs::canonical(root, error).string();
  if (error || !fs::is_directory(whole, error))
    throw Error("data",
                fmt::format("there is no folder {}; hint: root names the folder that has a folder of images for "
                            "each class",
                            root));
  const std::string file = cache_folder.empty() ? ""
                                                : fmt::format("{}/images-{:016x}.index", cache_folder,
                                                              XXH3_64bits(whole.data(), whole.size()));
  if (!file.empty())
    if (auto kept = load(file, whole)) return std::move(*kept);
  Scan scan(whole);
  scan.run();
  if (!file.empty()) keep(file, scan.index_, scan.folders_);
  return std::move(scan.index_);
}

}  // namespace levin::data
