#include <levin/core/data/json/json_rows.h>

#include <levin/core/base/error.h>
#include <levin/core/base/tree_budget.h>
#include <levin/core/base/utf8.h>
#include <levin/core/data/cache/example_cache.h>

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

namespace levin::data {

namespace {

constexpr size_t kMostOpenFiles = 32;

}  // namespace

std::vector<std::string> find_files(const std::vector<std::string>& patterns) {
  std::vector<std::string> found;
  std::set<std::filesystem::path> seen;
  for (const std::string& pattern : patterns) {
    glob_t matches{};
    const int result = ::glob(pattern.c_str(), GLOB_BRACE, nullptr, &matches);
    std::vector<std::string> files;
    for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i)
      if (std::error_code ignored; !std::filesystem::is_directory(matches.gl_pathv[i], ignored))
        files.emplace_back(matches.gl_pathv[i]);
    ::globfree(&matches);
    if (files.empty()) throw Error("data", fmt::format("no file matches '{}'", pattern));
    for (const std::string& file : files) {
      if (!seen.insert(std::filesystem::canonical(file)).second)
        throw Error("data", fmt::format("the file '{}' is named twice, which would take its rows twice; got {}", file,
                                        join(patterns)));
      found.push_back(file);
    }
  }
  return found;
}

JsonRows::JsonRows(const std::vector<std::string>& patterns, const std::string& cache_folder) {
  int64_t end = 0;
  for (const std::string& path : find_files(patterns)) {
    files_.push_back(index_rows(path, cache_folder));
    ends_.push_back(end += files_.back().rows);
  }
  if (end == 0)
    throw Error("data", fmt::format("{} no rows", files_.size() == 1 ? files_.front().path + " has"
                                                                     : fmt::format("{} files have", files_.size())));
}

std::pair<std::shared_ptr<const RowFile>, int64_t> JsonRows::find(int64_t row) const {
  if (row < 0 || row >= size()) throw Error("data", fmt::format("there is no row {}; there are {}", row, size()));
  const auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
  const int64_t own = row - (file == 0 ? 0 : ends_[file - 1]);
  const MutexLock lock(mutex_);
  const auto open = std::find_if(open_.begin(), open_.end(), [file](const auto& one) { return one.first == file; });
  if (open != open_.end()) {
    open_.splice(open_.begin(), open_, open);
  } else {
    open_.emplace_front(file, std::make_shared<const RowFile>(files_[file]));
    if (open_.size() > kMostOpenFiles) open_.pop_back();
  }
  return {open_.front().second, own};
}

nlohmann::json JsonRows::row(int64_t row) const {
  const auto [file, own] = find(row);
  const std::string text = file->read(own);
  const auto fail = [&, &file = file, own = own](const std::string& what) {
    return Error("data", fmt::format("{}:{}: {}", file->path(), file->line(own), what));
  };
  if (is_too_deep_json(text)) throw fail("lists and objects lie too deep inside each other");
  try {
    nlohmann::json object = nlohmann::json::parse(text);
    if (!object.is_object())
      throw fail(fmt::format("a row must be an object; got {}: {}", object.type_name(), shown_text(text, 60)));
    return object;
  } catch (const nlohmann::json::exception&) {
    throw fail(
        fmt::format("the line is not JSON: {}; valid: an object a line, {{\"text\": \"...\"}}", shown_text(text, 60)));
  }
}

std::string JsonRows::place(int64_t row) const {
  const auto [file, own] = find(row);
  return fmt::format("{}:{}", file->path(), file->line(own));
}

std::string JsonRows::version() const {
  std::string version;
  for (const RowIndex& file : files_) version += fmt::format("{} {}", file.path, version_of_file(file.path));
  return version;
}

RowSelection::RowSelection(int64_t size, int64_t held_out, Part part)
    : size_(size),
      count_(part == Part::kAll       ? size
             : part == Part::kHeldOut ? held_out
                                      : size - held_out),
      part_(part) {}

// Of the first r rows, floor(r * held_out / size) are held out; so the one of index j is the last of the first
// ceil((j + 1) * size / held_out), and the others are at floor(j * size / others).
int64_t RowSelection::row(int64_t index) const {
  __extension__ using Wide = __int128;
  if (index < 0 || index >= count_)
    throw Error("data", fmt::format("there is no example {}; there are {}", index, count_));
  if (part_ == Part::kAll) return index;
  if (part_ == Part::kHeldOut) return static_cast<int64_t>((Wide{index + 1} * size_ + count_ - 1) / count_ - 1);
  return static_cast<int64_t>(Wide{index} * size_ / count_);
}

}  // namespace levin::data
