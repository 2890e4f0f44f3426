#include <levin/loggers/wandb_file.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <zlib.h>
#include <protozero/pbf_reader.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

namespace levin {
namespace {

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");

constexpr size_t kBlock = 32768;
constexpr size_t kRecordHeader = 7;  ///< CRC-32, length (16 bits), type
/// ":W&B", the low 16 bits of the CRC-32 of "Weights & Biases", version 0.
constexpr std::string_view kFileHeader(":W&B\xE1\xBE\0", 7);
constexpr char kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4;

// Of wandb_internal.Record.
constexpr protozero::pbf_tag_type kHistory = 2, kExit = 18;

uint32_t checksum(char type, std::string_view data) {
  uint32_t crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(&type), 1));
  return static_cast<uint32_t>(crc32(crc, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
}

/// Reads messages one after the other, as far as they are whole, with one block in memory.
class Scanner {
 public:
  /// Throws levin::Error when the file cannot be read, as every call does.
  explicit Scanner(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    if (!file_) throw Error("files", fmt::format("cannot read {}", path_));
    read_block();
    at_ = kFileHeader.size();
  }

  bool has_header() const { return std::string_view(block_).starts_with(kFileHeader); }
  /// Where the last whole message ends.
  uint64_t position() const { return position_; }

  std::optional<std::string> next() {
    std::string message;
    for (bool begun = false;; begun = true) {
      // No part of a message crosses the end of a block.
      if (kBlock - at_ < kRecordHeader) read_block();
      if (at_ + kRecordHeader > block_.size()) return std::nullopt;
      uint32_t crc = 0;
      uint16_t size = 0;
      std::memcpy(&crc, block_.data() + at_, sizeof crc);
      std::memcpy(&size, block_.data() + at_ + 4, sizeof size);
      const char type = block_[at_ + 6];
      at_ += kRecordHeader;
      if (at_ + size > block_.size()) return std::nullopt;
      const std::string_view data = std::string_view(block_).substr(at_, size);
      at_ += size;
      const bool begins = type == kFull || type == kFirst;
      if (checksum(type, data) != crc || begins == begun) return std::nullopt;
      message += data;
      if (type == kFull || type == kLast) break;
    }
    position_ = block_begin_ + at_;
    return message;
  }

 private:
  void read_block() {
    block_begin_ += block_.size();
    block_.resize(kBlock);
    file_.read(block_.data(), kBlock);
    if (file_.bad()) throw Error("files", fmt::format("cannot read {}", path_));
    block_.resize(static_cast<size_t>(file_.gcount()));
    at_ = 0;
  }

  const std::string path_;
  std::ifstream file_;
  std::string block_;
  uint64_t block_begin_ = 0;  ///< in the file
  size_t at_ = 0;             ///< in the block
  uint64_t position_ = kFileHeader.size();
};

}  // namespace

WandbFile::WandbFile(std::string path) : path_(std::move(path)) {
  if (FileSystem::current().exists(path_)) scan();
}

void WandbFile::scan() {
  Scanner scanner(path_);
  if (!scanner.has_header()) return;
  size_ = scanner.position();
  while (const auto message = scanner.next()) {
    const protozero::data_view view(message->data(), message->size());
    if (protozero::pbf_reader exit(view); exit.next(kExit)) break;
    if (protozero::pbf_reader row(view); row.next(kHistory)) ++rows_found_;
    ++messages_;
    size_ = scanner.position();
  }
}

void WandbFile::add_message(std::string& out, std::string_view message) const {
  for (bool first = true, last = false; !last; first = false) {
    size_t room = kBlock - (size_ + out.size()) % kBlock;
    if (room < kRecordHeader) {
      out.append(room, '\0');
      room = kBlock;
    }
    const std::string_view part = message.substr(0, room - kRecordHeader);
    message.remove_prefix(part.size());
    last = message.empty();
    const char type = first ? (last ? kFull : kFirst) : (last ? kLast : kMiddle);
    const uint32_t crc = checksum(type, part);
    const auto size = static_cast<uint16_t>(part.size());
    out.append(reinterpret_cast<const char*>(&crc), sizeof crc);
    out.append(reinterpret_cast<const char*>(&size), sizeof size);
    out += type;
    out += part;
  }
}

void WandbFile::append(std::span<const std::string> messages) {
  std::string data;
  if (size_ == 0) data = kFileHeader;
  for (const auto& message : messages) add_message(data, message);
  try {
    if (file_ == nullptr) {
      auto& files = FileSystem::current();
      if (size_ == 0) {
        files.create_directories(std::filesystem::path(path_).parent_path().string());
        file_ = files.create(path_);
      } else {
        // What a failed append left.
        std::error_code error;
        std::filesystem::resize_file(path_, size_, error);
        if (error) throw Error("files", fmt::format("cannot write {}: {}", path_, error.message()));
        file_ = files.open_append(path_);
      }
    }
    file_->append(data);
    file_->flush();
  } catch (...) {
    file_.reset();
    throw;
  }
  size_ += data.size();
  messages_ += static_cast<int64_t>(messages.size());
}

}  // namespace levin
