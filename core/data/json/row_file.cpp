#include <levin/core/data/json/row_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/data/cache/example_cache.h>
#include <levin/core/data/json/text_stream.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

namespace fs = std::filesystem;

/// Unpacked bytes of rows after which a block ends.
constexpr size_t kBlockBytes = size_t{1} << 16;
constexpr std::array<char, 16> kRowsMagic = {'l', 'e', 'v', 'i', 'n', ' ', 'r', 'o', 'w', 's', ' ', '1', '\n'};

/// The beginning of an index; places follow.
struct RowsHeader {
  std::array<char, 16> magic = kRowsMagic;
  int64_t source_bytes = 0;    ///< of the file that it is of
  int64_t source_changed = 0;  ///< when that changed last, in nanoseconds
  int64_t rows = 0;
  int64_t blocks_bytes = -1;  ///< of the blocks beside it; -1: the file is not packed
};
static_assert(sizeof(RowsHeader) == 48 && sizeof(RowFile::Place) == 24);

/// Before each block.
struct BlockHeader {
  uint32_t packed_bytes = 0;
  uint32_t bytes = 0;
};

struct stat status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw Error("data", fmt::format("{} cannot be read: {}", path, std::strerror(errno)));
  return status;
}

int64_t changed_at(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

void read_at(const Descriptor& file, int64_t offset, void* bytes, size_t size, const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got =
        ::pread(file.number(), static_cast<char*>(bytes) + done, size - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error("data", fmt::format("{} cannot be read: {}", path, std::strerror(errno)));
    if (got == 0)
      throw Error("data", fmt::format("{} has become shorter since its rows were indexed: it ends before byte {}", path,
                                      offset + static_cast<int64_t>(size)));
    done += static_cast<size_t>(got);
  }
}

/// Where an index may be: beside the file, or in the cache folder.
std::vector<RowIndex> places_of_index(const std::string& path, const std::string& cache_folder) {
  const fs::path file(path);
  const std::string beside = (file.parent_path() / ("." + file.filename().string())).string();
  std::vector<RowIndex> places{{.path = path, .index = beside + ".rows", .blocks = beside + ".blocks"}};
  if (cache_folder.empty()) return places;
  const std::string whole = whole_path(path);
  const std::string cached = fmt::format("{}/rows-{:016x}", cache_folder, XXH3_64bits(whole.data(), whole.size()));
  places.push_back({.path = path, .index = cached + ".rows", .blocks = cached + ".blocks"});
  return places;
}

/// The index that is there, where it is whole and of the file as it is.
std::optional<RowIndex> find_index(RowIndex index, const struct stat& source) {
  struct stat status {};
  if (::stat(index.index.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (status.st_size < static_cast<int64_t>(sizeof(RowsHeader))) return std::nullopt;
  RowsHeader header;
  const Descriptor file(::open(index.index.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open() || ::pread(file.number(), &header, sizeof(header), 0) != sizeof(header)) return std::nullopt;
  if (header.magic != kRowsMagic || header.source_bytes != source.st_size ||
      header.source_changed != changed_at(source))
    return std::nullopt;
  const auto most =
      (status.st_size - static_cast<int64_t>(sizeof(RowsHeader))) / static_cast<int64_t>(sizeof(RowFile::Place));
  if (header.rows < 0 || header.rows != most) return std::nullopt;
  index.rows = header.rows;
  if (header.blocks_bytes < 0) {
    index.blocks.clear();
    return index;
  }
  struct stat blocks {};
  if (::stat(index.blocks.c_str(), &blocks) != 0 || blocks.st_size != header.blocks_bytes) return std::nullopt;
  return index;
}

/// Packs rows, some at a time.
class BlockWriter {
 public:
  explicit BlockWriter(const std::string& path) : file_(FileSystem::current().create(path)) {}

  /// Adds a row; returns its block's offset and its place there.
  std::pair<int64_t, uint32_t> add(std::string_view row) {
    if (block_.size() >= kBlockBytes) flush();
    const auto within = static_cast<uint32_t>(block_.size());
    block_.append(row);
    return {offset_, within};
  }
  /// Writes what is left; returns the bytes of the file.
  int64_t finish() {
    if (!block_.empty()) flush();
    file_->close();
    return offset_;
  }

 private:
  void flush() {
    packed_.resize(ZSTD_compressBound(block_.size()));
    const size_t size = ZSTD_compress(packed_.data(), packed_.size(), block_.data(), block_.size(), /*level=*/1);
    if (ZSTD_isError(size) != 0) throw Error("data", fmt::format("rows cannot be packed: {}", ZSTD_getErrorName(size)));
    const BlockHeader header{.packed_bytes = static_cast<uint32_t>(size),
                             .bytes = static_cast<uint32_t>(block_.size())};
    file_->append(&header, sizeof(header));
    file_->append(packed_.data(), size);
    offset_ += static_cast<int64_t>(sizeof(header) + size);
    block_.clear();
  }

  std::unique_ptr<WritableFile> file_;
  int64_t offset_ = 0;
  std::string block_;
  std::vector<char> packed_;
};

/// Reads a file through once and writes where its rows are.
class RowScan {
 public:
  RowScan(const RowIndex& index, const std::string& places, const std::string& blocks)
      : path_(index.path), stream_(index.path), places_(FileSystem::current().create(places)) {
    if (stream_.is_packed()) blocks_.emplace(blocks);
    const RowsHeader nothing{.magic = {}};  // what is there last makes it an index
    places_->append(&nothing, sizeof(nothing));
  }

  RowsHeader run(const struct stat& source) {
    std::vector<char> chunk(size_t{1} << 18);
    while (const size_t got = stream_.read(chunk.data(), chunk.size())) {
      std::string_view rest(chunk.data(), got);
      while (!rest.empty()) {
        const size_t end = rest.find('\n');
        append(rest.substr(0, end));
        if (end == std::string_view::npos) break;
        end_line();
        rest.remove_prefix(end + 1);
      }
    }
    if (!line_.empty()) end_line();
    RowsHeader header{.source_bytes = source.st_size, .source_changed = changed_at(source), .rows = rows_};
    if (blocks_) header.blocks_bytes = blocks_->finish();
    places_->close();
    if (has_reported_) log::info(fmt::format("{} has {} rows", path_, rows_));
    return header;
  }

 private:
  void append(std::string_view part) {
    if (static_cast<int64_t>(line_.size() + part.size()) > RowFile::kMostBytes)
      throw Error("data", fmt::format("{}:{}: the line has more than {} MiB; hint: JSON lines have one object a line",
                                      path_, lines_ + 1, RowFile::kMostBytes >> 20));
    line_.append(part);
  }

  void end_line() {
    ++lines_;
    std::string_view row = line_;
    int64_t begin = offset_;
    offset_ += static_cast<int64_t>(line_.size()) + 1;
    if (constexpr std::string_view kMark = "\xef\xbb\xbf"; lines_ == 1 && row.starts_with(kMark)) {
      row.remove_prefix(kMark.size());
      begin += static_cast<int64_t>(kMark.size());
    }
    const size_t last = row.find_last_not_of(" \t\r");
    if (last != std::string_view::npos) {
      row = row.substr(0, last + 1);
      RowFile::Place place{.offset = begin, .length = static_cast<uint32_t>(row.size()), .line = lines_};
      if (blocks_) std::tie(place.offset, place.within) = blocks_->add(row);
      places_->append(&place, sizeof(place));
      if (++rows_ % 65536 == 0) report();
    }
    line_.clear();
  }

  void report() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_report_) return;
    next_report_ = now + std::chrono::seconds(10);
    has_reported_ = true;
    log::info(fmt::format("indexing {}: {} rows so far", path_, rows_));
  }

  std::string path_;
  TextStream stream_;
  std::unique_ptr<WritableFile> places_;
  std::optional<BlockWriter> blocks_;
  std::string line_;
  int64_t lines_ = 0;
  int64_t offset_ = 0;
  int64_t rows_ = 0;
  bool has_reported_ = false;
  std::chrono::steady_clock::time_point next_report_ = std::chrono::steady_clock::now() + std::chrono::seconds(10);
};

/// Removes files that were begun, unless they were put in place.
class Unfinished {
 public:
  explicit Unfinished(std::vector<std::string> paths) : paths_(std::move(paths)) {}
  ~Unfinished() {
    std::error_code ignored;
    for (const std::string& path : paths_) fs::remove(path, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

 private:
  std::vector<std::string> paths_;
};

/// Returns whether a file of this name can be made.
bool can_make(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  return file.is_open();
}

/// Makes an index; nothing where its place cannot be written.
std::optional<RowIndex> make_index(const RowIndex& index, const struct stat& source) {
  static std::atomic<int64_t> next{0};
  const std::string suffix = fmt::format(".{}.{}", getpid(), next++);
  const std::string places = index.index + suffix;
  const std::string blocks = index.blocks + suffix;
  const Unfinished cleaned({places, blocks});
  if (!can_make(places)) return std::nullopt;
  const RowsHeader header = RowScan(index, places, blocks).run(source);
  {
    const Descriptor file(::open(places.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file.is_open() || ::pwrite(file.number(), &header, sizeof(header), 0) != sizeof(header) ||
        ::fsync(file.number()) != 0)
      throw Error("data", fmt::format("cannot write {}: {}", places, std::strerror(errno)));
  }
  RowIndex made = index;
  made.rows = header.rows;
  if (header.blocks_bytes < 0)
    made.blocks.clear();
  else
    FileSystem::current().rename(blocks, made.blocks);
  FileSystem::current().rename(places, made.index);
  return made;
}

}  // namespace

RowIndex index_rows(const std::string& path, const std::string& cache_folder) {
  const struct stat source = status_of(path);
  const std::vector<RowIndex> candidates = places_of_index(path, cache_folder);
  for (const RowIndex& candidate : candidates)
    if (auto found = find_index(candidate, source)) return std::move(*found);
  for (const RowIndex& candidate : candidates) {
    const std::string folder = fs::path(candidate.index).parent_path().string();
    if (&candidate != &candidates.front()) {
      std::error_code ignored;
      fs::create_directories(folder, ignored);
    }
    if (auto made = make_index(candidate, source)) return std::move(*made);
  }
  throw Error("data",
              fmt::format("the index of {} can be written neither beside it nor in '{}'; hint: data.cache_folder, a "
                          "folder that can be written",
                          path, cache_folder));
}

RowFile::RowFile(RowIndex index)
    : index_(std::move(index)),
      places_(open_regular_file(index_.index, "data")),
      text_(open_regular_file(index_.blocks.empty() ? index_.path : index_.blocks, "data")) {}

RowFile::Place RowFile::place(int64_t row) const {
  if (row < 0 || row >= index_.rows)
    throw Error("data", fmt::format("there is no row {}; {} has {}", row, index_.path, index_.rows));
  Place place;
  read_at(places_, static_cast<int64_t>(sizeof(RowsHeader)) + row * static_cast<int64_t>(sizeof(Place)), &place,
          sizeof(place), index_.index);
  if (place.length > kMostBytes)
    throw Error("data", fmt::format("{} is damaged; hint: remove it, it is made again", index_.index));
  return place;
}

std::shared_ptr<const std::string> RowFile::block(int64_t offset) const {
  {
    const MutexLock lock(mutex_);
    if (last_.first == offset) return last_.second;
  }
  const auto damaged = [&] {
    return Error("data", fmt::format("{} is damaged; hint: remove it, it is made again", index_.blocks));
  };
  BlockHeader header;
  read_at(text_, offset, &header, sizeof(header), index_.blocks);
  if (header.bytes > kMostBytes + static_cast<int64_t>(kBlockBytes) ||
      header.packed_bytes > ZSTD_compressBound(header.bytes))
    throw damaged();
  std::vector<char> packed(header.packed_bytes);
  read_at(text_, offset + static_cast<int64_t>(sizeof(header)), packed.data(), packed.size(), index_.blocks);
  auto unpacked = std::make_shared<std::string>(header.bytes, '\0');
  if (ZSTD_decompress(unpacked->data(), unpacked->size(), packed.data(), packed.size()) != header.bytes)
    throw damaged();
  const MutexLock lock(mutex_);
  last_ = {offset, unpacked};
  return unpacked;
}

std::string RowFile::read(int64_t row) const {
  const Place at = place(row);
  if (!index_.blocks.empty()) {
    const auto unpacked = block(at.offset);
    if (size_t{at.within} + at.length > unpacked->size())
      throw Error("data", fmt::format("{} is damaged; hint: remove it, it is made again", index_.index));
    return unpacked->substr(at.within, at.length);
  }
  std::string text(at.length, '\0');
  read_at(text_, at.offset, text.data(), text.size(), index_.path);
  return text;
}

int64_t RowFile::line(int64_t row) const { return place(row).line; }

}  // namespace levin::data
