#include <levin/loggers/record_spool.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace levin {
namespace {

static_assert(std::endian::native == std::endian::little, "lengths are written as they lie in memory");

constexpr int64_t kFileBytes = 256 << 10;
/// Numbers have as many digits, so that names sort as numbers do; the first leaves room for files put before it.
constexpr int64_t kFirstNumber = 1'000'000'000;

constexpr std::string_view kRecords = "records";
constexpr std::string_view kUnreadable = "unreadable";

struct RecordHeader {
  uint32_t size = 0;
  uint32_t checksum = 0;
};

struct FileName {
  int64_t number = 0;
  std::string_view kind;
};

/// Of "1000000000.records"; nothing for a name of another form.
std::optional<FileName> parse_name(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  FileName result{.kind = name.substr(dot + 1)};
  const char* end = name.data() + dot;
  const auto [stop, error] = std::from_chars(name.data(), end, result.number);
  return error == std::errc() && stop == end ? std::optional(result) : std::nullopt;
}

RecordHeader header_of(std::string_view record) {
  RecordHeader header{.size = static_cast<uint32_t>(record.size())};
  uLong checksum = crc32(0, reinterpret_cast<const Bytef*>(&header.size), sizeof header.size);
  checksum = crc32(checksum, reinterpret_cast<const Bytef*>(record.data()), header.size);
  header.checksum = static_cast<uint32_t>(checksum);
  return header;
}

struct Contents {
  std::vector<std::string> records;
  bool is_whole = true;  ///< nothing follows the records
};

Contents parse(std::string_view data) {
  Contents contents;
  while (!data.empty()) {
    RecordHeader header;
    std::string_view record;
    if (data.size() >= sizeof header) {
      std::memcpy(&header, data.data(), sizeof header);
      record = data.substr(sizeof header, header.size);
    }
    if (data.size() < sizeof header || record.size() < header.size || header_of(record).checksum != header.checksum) {
      contents.is_whole = false;
      break;
    }
    contents.records.emplace_back(record);
    data.remove_prefix(sizeof header + record.size());
  }
  return contents;
}

void write(WritableFile& file, std::span<const std::string> records) {
  for (const auto& record : records) {
    const RecordHeader header = header_of(record);
    file.append(&header, sizeof header);
    file.append(record);
  }
  file.flush();
}

std::string lock_path(const std::string& directory) { return directory + ".lock"; }

std::string parent_of(const std::string& directory) {
  const std::string parent = std::filesystem::path(directory).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

RecordSpool::RecordSpool(std::string directory, bool must_be_free)
    : directory_(std::move(directory)), first_number_(kFirstNumber), next_number_(kFirstNumber) {
  try {
    FileSystem::current().create_directories(parent_of(directory_));
  } catch (const Error&) {
    // append() will say what is wrong.
  }
  const std::string wanted = directory_;
  lock_ = std::make_unique<ProcessLock>(lock_path(directory_));
  if (must_be_free && !lock_->holder().empty())
    throw Error("logger",
                fmt::format("{} is being sent by {}; hint: wait until that run, or that levin-send-logs, ends",
                            directory_, lock_->holder()));
  for (int number = 2; !lock_->holder().empty(); ++number) {
    directory_ = fmt::format("{}.{}", wanted, number);
    lock_ = std::make_unique<ProcessLock>(lock_path(directory_));
  }
  try {
    scan();
    if (directory_ == wanted) take_over_folders_beside();
  } catch (const Error&) {
    // What cannot be read or moved now stays where it is.
  }
}

void RecordSpool::scan() {
  for (const auto& text : FileSystem::current().list(directory_)) {
    const auto name = parse_name(text);
    if (!name) continue;
    first_number_ = std::min(first_number_, name->number);
    next_number_ = std::max(next_number_, name->number + 1);
    if (name->kind == kRecords) take_over(name->number);
  }
}

void RecordSpool::take_over(int64_t number) {
  File file{.number = number};
  try {
    count(file, parse(FileSystem::current().read_file(path_of(number))).records);
  } catch (const Error&) {
    return;  // unreadable now; it stays where it is
  }
  files_.push_back(file);
}

void RecordSpool::take_over_folders_beside() {
  auto& files = FileSystem::current();
  const std::string parent = parent_of(directory_);
  const std::string start = std::filesystem::path(directory_).filename().string() + ".";
  for (const auto& name : files.list(parent)) {
    // Lock files have such names as well.
    const bool is_one = name.starts_with(start) && name.find_first_not_of("0123456789", start.size()) == name.npos;
    if (!is_one) continue;
    const std::string other = fmt::format("{}/{}", parent, name);
    const ProcessLock lock(lock_path(other));
    if (!lock.holder().empty()) continue;
    files.create_directories(directory_);
    for (const auto& text : files.list(other)) {
      const auto file = parse_name(text);
      if (!file || file->kind != kRecords) continue;
      const int64_t number = next_number_++;
      files.rename(fmt::format("{}/{}", other, text), path_of(number));
      take_over(number);
    }
    std::error_code not_empty;
    std::filesystem::remove(other, not_empty);
  }
}

std::string RecordSpool::path_of(int64_t number) const {
  return fmt::format("{}/{:010}.{}", directory_, number, kRecords);
}

void RecordSpool::count(File& file, std::span<const std::string> records) {
  int64_t bytes = 0;
  for (const auto& record : records) bytes += static_cast<int64_t>(record.size());
  file.records += static_cast<int64_t>(records.size());
  file.bytes += bytes;
  records_ += static_cast<int64_t>(records.size());
  bytes_ += bytes;
}

/// A new file, open for more; none is left when the disk does not take it all.
std::unique_ptr<WritableFile> RecordSpool::write_file(int64_t number, std::span<const std::string> records) const {
  FileSystem::current().create_directories(directory_);
  const std::string path = path_of(number);
  auto file = FileSystem::current().create(path);
  try {
    write(*file, records);
  } catch (...) {
    file.reset();
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
  return file;
}

void RecordSpool::append(std::span<const std::string> records) {
  if (records.empty()) return;
  // A file has its bound, whatever the number of records.
  size_t taken = 0;
  for (int64_t bytes = 0; taken < records.size() && bytes < kFileBytes; ++taken)
    bytes += static_cast<int64_t>(records[taken].size());
  const auto part = records.first(taken);
  if (last_ == nullptr || files_.back().bytes >= kFileBytes) {
    const int64_t number = next_number_++;
    last_ = write_file(number, part);
    files_.push_back({.number = number});
  } else {
    try {
      write(*last_, part);
    } catch (...) {
      // It ends in a part of a record now.
      last_.reset();
      const File& file = files_.back();
      const int64_t whole = file.bytes + file.records * static_cast<int64_t>(sizeof(RecordHeader));
      std::error_code ignored;
      std::filesystem::resize_file(path_of(file.number), static_cast<uintmax_t>(whole), ignored);
      throw;
    }
  }
  count(files_.back(), part);
  append(records.subspan(taken));
}

void RecordSpool::prepend(std::span<const std::string> records) {
  if (records.empty()) return;
  File first{.number = --first_number_};
  write_file(first.number, records);
  count(first, records);
  files_.push_front(first);
}

std::vector<std::string> RecordSpool::front() {
  if (files_.empty()) return {};
  if (files_.size() == 1) last_.reset();
  Contents contents = parse(FileSystem::current().read_file(path_of(files_.front().number)));
  if (!contents.is_whole) set_front_aside();
  return std::move(contents.records);
}

int64_t RecordSpool::forget_front() {
  const File file = files_.front();
  if (files_.size() == 1) last_.reset();
  files_.pop_front();
  records_ -= file.records;
  bytes_ -= file.bytes;
  return file.number;
}

std::string RecordSpool::pop_front() {
  const bool set_aside = files_.front().set_aside;
  const int64_t number = forget_front();
  if (!set_aside) {
    FileSystem::current().remove_all(path_of(number));
    return "";
  }
  std::string aside = fmt::format("{}/{:010}.{}", directory_, number, kUnreadable);
  FileSystem::current().rename(path_of(number), aside);
  return aside;
}

void RecordSpool::skip_front() { forget_front(); }

}  // namespace levin
