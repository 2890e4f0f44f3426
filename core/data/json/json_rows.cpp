#include <levin/core/data/json/json_rows.h>

#include <levin/core/base/error.h>
#include <levin/core/base/tree_budget.h>
#include <levin/core/base/utf8.h>
#include <levin/core/data/cache/example_cache.h>

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

namespace levin::data {

namespace {

constexpr size_t kMostOpenFiles = 32;

/// Returns the data files of a folder that save_to_disk of Hugging Face's datasets wrote. Throws levin::Error where it
/// is another folder.
std::vector<std::string> files_of_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  if (fs::exists(folder + "/dataset_dict.json"))
    throw Error("data", fmt::format("{} is a folder of several splits; hint: one of them, {}/train", folder, folder));
  const std::string path = folder + "/state.json";
  if (!fs::exists(path))
    throw Error("data", fmt::format("{} is a folder; valid: files and patterns, {}/*.jsonl, and folders that "
                                    "save_to_disk of Hugging Face's datasets wrote, which have a state.json",
                                    folder, folder));
  std::vector<std::string> files;
  std::ifstream file(path);
  const nlohmann::json state = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto listed = state.is_object() ? state.find("_data_files") : state.end();
  if (state.is_object() && listed != state.end() && listed->is_array())
    for (const nlohmann::json& entry : *listed)
      if (entry.is_object() && entry.contains("filename") && entry["filename"].is_string())
        files.push_back(folder + "/" + entry["filename"].get<std::string>());
  if (files.empty())
    throw Error("data", fmt::format("{} names no data files; valid: that of a folder of save_to_disk, with "
                                    "_data_files",
                                    path));
  for (const std::string& name : files)
    if (!fs::exists(name)) throw Error("data", fmt::format("there is no file {}, which {} names", name, path));
  return files;
}

/// Its rows could not be read in any order.
void refuse_parquet(const std::string& path) {
  std::string begin(4, '\0');
  if (std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin)) && begin == "PAR1")
    throw Error("data", fmt::format("{} is a Parquet file; valid: JSON lines and Arrow IPC files; hint: "
                                    "datasets.Dataset.from_parquet(FILE).save_to_disk(FOLDER)",
                                    path));
}

}  // namespace

std::vector<std::string> find_files(const std::vector<std::string>& patterns) {
  std::vector<std::string> found;
  std::set<std::filesystem::path> seen;
  for (const std::string& pattern : patterns) {
    glob_t matches{};
    const int result = ::glob(pattern.c_str(), GLOB_BRACE, nullptr, &matches);
    std::vector<std::string> files;
    std::string folder;
    for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) {
      const std::string name = matches.gl_pathv[i];
      if (std::error_code ignored; std::filesystem::is_directory(name, ignored))
        folder = name;
      else
        files.push_back(name);
    }
    const bool is_folder = result == 0 && matches.gl_pathc == 1 && !folder.empty();
    ::globfree(&matches);
    if (is_folder) {
      while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
      files = files_of_folder(folder);
    }
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
    refuse_parquet(path);
    if (is_arrow_file(path))
      files_.push_back({.lines = {.path = path}, .arrow = std::make_shared<const ArrowRows>(path)});
    else
      files_.push_back({.lines = index_rows(path, cache_folder)});
    ends_.push_back(end += files_.back().arrow != nullptr ? files_.back().arrow->size() : files_.back().lines.rows);
  }
  if (end == 0)
    throw Error("data", fmt::format("{} no rows", files_.size() == 1 ? files_.front().lines.path + " has"
                                                                     : fmt::format("{} files have", files_.size())));
}

JsonRows::Place JsonRows::find(int64_t row) const {
  if (row < 0 || row >= size()) throw Error("data", fmt::format("there is no row {}; there are {}", row, size()));
  const auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
  return {.file = file, .row = row - (file == 0 ? 0 : ends_[file - 1])};
}

std::shared_ptr<const RowFile> JsonRows::open(size_t file) const {
  const MutexLock lock(mutex_);
  const auto open = std::find_if(open_.begin(), open_.end(), [file](const auto& one) { return one.first == file; });
  if (open != open_.end()) {
    open_.splice(open_.begin(), open_, open);
  } else {
    open_.emplace_front(file, std::make_shared<const RowFile>(files_[file].lines));
    if (open_.size() > kMostOpenFiles) open_.pop_back();
  }
  return open_.front().second;
}

nlohmann::json JsonRows::row(int64_t row) const {
  const Place place = find(row);
  if (const auto& arrow = files_[place.file].arrow) return arrow->row(place.row);
  const auto file = open(place.file);
  const std::string text = file->read(place.row);
  const auto fail = [&](const std::string& what) {
    return Error("data", fmt::format("{}:{}: {}", file->path(), file->line(place.row), what));
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
  const Place place = find(row);
  const File& file = files_[place.file];
  return fmt::format("{}:{}", file.lines.path, file.arrow ? place.row + 1 : open(place.file)->line(place.row));
}

std::string JsonRows::version() const {
  std::string version;
  for (const File& file : files_)
    version += fmt::format("{} {}", whole_path(file.lines.path), version_of_file(file.lines.path));
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
