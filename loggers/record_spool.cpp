#include <levin/loggers/record_spool.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace levin {
namespace {

static_assert(std::endian::native == std::endian::little, "lengths are written as they lie in memory");

constexpr int64_t kFileBytes = 256 << 10;
/// Numbers have as many digits, so that names sort as numbers do; the first leaves room for files put before it.
constexpr int64_t kFirstNumber = 1'000'000'000;

constexpr std::string_view kSuffix = ".records";

std::optional<int64_t> number_of(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  int64_t number = 0;
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

/// Whole records; what a torn end holds is left out.
std::vector<std::string> parse(std::string_view data) {
  std::vector<std::string> records;
  uint32_t size = 0;
  while (data.size() >= sizeof size) {
    std::memcpy(&size, data.data(), sizeof size);
    data.remove_prefix(sizeof size);
    if (data.size() < size) break;
    records.emplace_back(data.substr(0, size));
    data.remove_prefix(size);
  }
  return records;
}

}  // namespace

RecordSpool::RecordSpool(std::string directory) : directory_(std::move(directory)), next_number_(kFirstNumber) {
  std::vector<std::string> names;
  try {
    names = FileSystem::current().list(directory_);
  } catch (const Error&) {
    // No folder can be read there; append() will say what is wrong.
  }
  for (const auto& name : names) {
    const auto number = number_of(name);
    if (!number) continue;
    File file{.number = *number};
    try {
      count(file, parse(FileSystem::current().read_file(path_of(*number))));
    } catch (const Error&) {
      continue;  // unreadable now; it stays where it is
    }
    files_.push_back(file);
    next_number_ = std::max(next_number_, *number + 1);
  }
}

std::string RecordSpool::path_of(int64_t number) const {
  return fmt::format("{}/{:010}{}", directory_, number, kSuffix);
}

void RecordSpool::count(File& file, std::span<const std::string> records) {
  int64_t bytes = 0;
  for (const auto& record : records) bytes += static_cast<int64_t>(record.size());
  file.records += static_cast<int64_t>(records.size());
  file.bytes += bytes;
  records_ += static_cast<int64_t>(records.size());
  bytes_ += bytes;
}

void RecordSpool::write(WritableFile& file, std::span<const std::string> records) const {
  for (const auto& record : records) {
    const auto size = static_cast<uint32_t>(record.size());
    file.append(&size, sizeof size);
    file.append(record);
  }
  file.flush();
}

void RecordSpool::append(std::span<const std::string> records) {
  if (records.empty()) return;
  auto& files = FileSystem::current();
  // A file has its bound, whatever the number of records.
  size_t taken = 0;
  for (int64_t bytes = 0; taken < records.size() && bytes < kFileBytes; ++taken)
    bytes += static_cast<int64_t>(records[taken].size());
  const auto part = records.first(taken);
  if (last_ == nullptr || files_.back().bytes >= kFileBytes) {
    last_.reset();
    files.create_directories(directory_);
    // A file that fails below is not counted and its number is not used again.
    const int64_t number = next_number_++;
    auto file = files.create(path_of(number));
    write(*file, part);
    last_ = std::move(file);
    files_.push_back({.number = number});
  } else {
    try {
      write(*last_, part);
    } catch (...) {
      last_.reset();  // it may end in a torn record
      throw;
    }
  }
  count(files_.back(), part);
  append(records.subspan(taken));
}

void RecordSpool::prepend(std::span<const std::string> records) {
  if (files_.empty()) {
    append(records);
    return;
  }
  if (records.empty()) return;
  auto& files = FileSystem::current();
  File first{.number = files_.front().number - 1};
  auto file = files.create(path_of(first.number));
  write(*file, records);
  file->close();
  count(first, records);
  files_.push_front(first);
}

std::vector<std::string> RecordSpool::front() {
  if (files_.empty()) return {};
  if (files_.size() == 1) last_.reset();
  return parse(FileSystem::current().read_file(path_of(files_.front().number)));
}

int64_t RecordSpool::forget_front() {
  const File file = files_.front();
  if (files_.size() == 1) last_.reset();
  files_.pop_front();
  records_ -= file.records;
  bytes_ -= file.bytes;
  return file.number;
}

void RecordSpool::pop_front() { FileSystem::current().remove_all(path_of(forget_front())); }

void RecordSpool::skip_front() { forget_front(); }

}  // namespace levin
