#include <levin/core/data/cache/disk_cache.h>

#include <levin/core/base/descriptor.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/data/cache/example_bytes.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

namespace levin::data {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "LEVINEX1";
constexpr const char* kPending = ".pending";  ///< ending of a file that is being written
constexpr int64_t kMeasuredEvery = int64_t{256} << 20;

/// The beginning of a file; to_bytes follows.
struct Header {
  char magic[8] = {};
  XXH128_canonical_t checksum = {};  ///< of all that follows
  XXH128_canonical_t version = {};
  char padding[24] = {};
};
static_assert(sizeof(Header) == 64);
constexpr size_t kUnchecked = offsetof(Header, version);

XXH128_canonical_t hash_of(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return canonical;
}

bool equal(const XXH128_canonical_t& a, const XXH128_canonical_t& b) {
  return std::memcmp(a.digest, b.digest, sizeof(a.digest)) == 0;
}

std::string system_message() { return std::generic_category().message(errno); }

struct FileBytes {
  std::shared_ptr<char[]> memory;
  size_t size = 0;
};

/// A whole file; nothing where there is none that can be read.
std::optional<FileBytes> read_whole(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  FileBytes bytes;
  bytes.size = static_cast<size_t>(status.st_size);
  bytes.memory = std::shared_ptr<char[]>(new char[std::max(bytes.size, sizeof(Header))]);
  size_t done = 0;
  while (done < bytes.size) {
    const ssize_t got = ::read(file.number(), bytes.memory.get() + done, bytes.size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace

void DiskCacheOptions::describe(Schema<DiskCacheOptions>& schema) {
  schema.field("path", &DiskCacheOptions::path, "a folder, best on a local disk");
  schema
      .field("max_gb", &DiskCacheOptions::max_gb,
             "size of the folder at most (10^9 bytes); null: all but a twentieth of the disk")
      .above(0)
      .at_most(1e9);
}

DiskCache::DiskCache(const Options& options) : path_(options.path) {
  if (path_.empty()) throw ConfigError("the cache 'disk' has no path; hint: {name: disk, path: FOLDER}");
  if (options.max_gb) max_bytes_ = static_cast<int64_t>(*options.max_gb * 1e9);
}

std::string DiskCache::file_of(const std::string& source) const {
  std::string digits;
  for (const unsigned char byte : hash_of(source).digest) digits += fmt::format("{:02x}", byte);
  return fmt::format("{}/{}/{}", path_, digits.substr(0, 2), digits.substr(2));
}

std::optional<Batch> DiskCache::find(const ExampleKey& key) {
  const std::string file = file_of(key.source);
  const auto bytes = read_whole(file);
  if (!bytes) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes->memory.get(), sizeof(header));
  std::optional<Batch> example;
  const bool is_whole = bytes->size >= sizeof(Header) &&
                        std::string_view(header.magic, sizeof(header.magic)) == kMagic &&
                        equal(header.checksum, hash_of({bytes->memory.get() + kUnchecked, bytes->size - kUnchecked}));
  if (is_whole && !equal(header.version, hash_of(key.version))) {
    if (!said_other_version_.exchange(true))
      log::warning(
          fmt::format("the cache {} has examples that were made of other files or by other transforms, the "
                      "first met is that of {}; they are made again",
                      path_, key.source));
    return std::nullopt;
  }
  if (is_whole) example = example_of_bytes(bytes->memory, sizeof(Header), bytes->size - sizeof(Header));
  if (!example && !said_damaged_.exchange(true))
    log::warning(fmt::format("the cache {} has damaged files, the first met is {}; they are made again", path_, file));
  return example;
}

void DiskCache::add(const ExampleKey& key, const Batch& example) {
  if (!writes_) return;
  std::string bytes(sizeof(Header), '\0');
  bytes += to_bytes(example);
  Header header;
  std::copy(kMagic.begin(), kMagic.end(), header.magic);
  header.version = hash_of(key.version);
  std::memcpy(bytes.data(), &header, sizeof(header));
  header.checksum = hash_of(std::string_view(bytes).substr(kUnchecked));
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (has_room(static_cast<int64_t>(bytes.size()))) write(file_of(key.source), bytes);
}

bool DiskCache::has_room(int64_t size) {
  const MutexLock lock(mutex_);
  if (until_measured_ <= 0) measure();
  if (!writes_) return false;
  if (max_bytes_ && bytes_ + size > *max_bytes_) return false;
  bytes_ += size;
  until_measured_ -= size;
  return true;
}

// Others write, too: each process counts what it adds, and looks again at what there is before it has added much.
void DiskCache::measure() {
  until_measured_ = max_bytes_ ? std::clamp<int64_t>(*max_bytes_ / 16, 1, kMeasuredEvery) : kMeasuredEvery;
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) return stop(error.message());
  struct statvfs disk {};
  if (::statvfs(path_.c_str(), &disk) == 0 && disk.f_bavail < disk.f_blocks / 20)
    return stop("less than a twentieth of its disk is free");
  if (!max_bytes_) return;
  bytes_ = 0;
  const auto now = fs::file_time_type::clock::now();
  for (fs::recursive_directory_iterator at(path_, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;  // removed meanwhile
    if (!at->is_regular_file(gone)) continue;
    const auto size = at->file_size(gone);
    if (gone) continue;
    // Of a program that was killed.
    if (at->path().extension() == kPending && now - at->last_write_time(gone) > std::chrono::hours(1) && !gone)
      fs::remove(at->path(), gone);
    else
      bytes_ += static_cast<int64_t>(size);
  }
}

void DiskCache::stop(const std::string& reason) {
  if (writes_.exchange(false))
    log::warning(
        fmt::format("the cache {} takes nothing more: {}; what it lacks is read as without it", path_, reason));
}

void DiskCache::write(const std::string& file, std::string_view bytes) {
  std::error_code error;
  fs::create_directories(fs::path(file).parent_path(), error);
  if (error) return stop(error.message());
  const std::string pending = fmt::format("{}.{}.{}{}", file, getpid(), num_written_++, kPending);
  Descriptor output(::open(pending.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!output.is_open() && errno == EEXIST) return;  // of a process of another host, or of one that was killed
  bool failed = !output.is_open();
  for (size_t done = 0; !failed && done < bytes.size();) {
    const ssize_t put = ::write(output.number(), bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    failed = put < 0;
    done += failed ? 0 : static_cast<size_t>(put);
  }
  failed = failed || ::close(output.release()) != 0 || std::rename(pending.c_str(), file.c_str()) != 0;
  if (!failed) return;
  const std::string reason = system_message();
  ::unlink(pending.c_str());
  stop(reason);
}

}  // namespace levin::data
