#include <levin/core/tools/report/event_file_reader.h>

#include <levin/core/base/error.h>

#include <boost/crc.hpp>
#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace levin::report {
namespace {

// Field numbers; see loggers/event_file_writer.cpp and loggers/hyperparameter_summary.cpp for the messages' sources.
constexpr protozero::pbf_tag_type kWallTime = 1, kStep = 2, kSummary = 5;     // Event
constexpr protozero::pbf_tag_type kValue = 1;                                 // Summary
constexpr protozero::pbf_tag_type kTag = 1, kSimpleValue = 2, kMetadata = 9;  // Summary.Value
constexpr protozero::pbf_tag_type kPluginData = 1;                            // SummaryMetadata
constexpr protozero::pbf_tag_type kContent = 2;                               // PluginData
constexpr protozero::pbf_tag_type kSessionEnd = 4, kStatus = 1;               // hparams
constexpr int32_t kSuccess = 1;

// A field of another type than it should have is passed over, as an unknown one: protozero reads what it is told to.
constexpr auto kBytes = protozero::pbf_wire_type::length_delimited;
bool is(const protozero::pbf_reader& reader, protozero::pbf_tag_type tag, protozero::pbf_wire_type type) {
  return reader.tag() == tag && reader.has_wire_type(type);
}

constexpr const char* kSessionStartTag = "_hparams_/session_start_info";
constexpr const char* kSessionEndTag = "_hparams_/session_end_info";

constexpr uint64_t kHeaderSize = 12;  // length and its checksum
constexpr uint64_t kFooterSize = 4;

uint32_t masked_crc(const void* data, size_t size) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data, size);
  return std::rotr(static_cast<uint32_t>(crc.checksum()), 15) + 0xa282ead8u;
}

/// The status in a SummaryMetadata message that ends a session.
bool succeeded(protozero::pbf_reader metadata) {
  while (metadata.next(kPluginData, kBytes)) {
    auto plugin = metadata.get_message();
    while (plugin.next(kContent, kBytes)) {
      auto content = plugin.get_message();
      while (content.next(kSessionEnd, kBytes)) {
        auto end = content.get_message();
        if (end.next(kStatus, protozero::pbf_wire_type::varint)) return end.get_enum() == kSuccess;
      }
    }
  }
  return false;
}

void read_value(protozero::pbf_reader value, Event& event) {
  std::string tag;
  std::optional<float> number;
  protozero::pbf_reader metadata;
  while (value.next()) {
    if (is(value, kTag, kBytes))
      tag = value.get_string();
    else if (is(value, kSimpleValue, protozero::pbf_wire_type::fixed32))
      number = value.get_float();
    else if (is(value, kMetadata, kBytes))
      metadata = value.get_message();
    else
      value.skip();
  }
  if (tag == kSessionStartTag) event.session_started = true;
  if (tag == kSessionEndTag) event.session_succeeded = succeeded(metadata);
  if (number) event.scalars.emplace_back(std::move(tag), *number);
}

}  // namespace

EventFileReader::EventFileReader(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw Error("report", "cannot read " + path + ": it is a folder");
  left_ = std::filesystem::file_size(path, error);
  if (!error) file_.open(path, std::ios::binary);
  if (error || !file_.is_open())
    throw Error("report", "cannot read " + path + ": " + (error ? error.message() : std::strerror(errno)));
}

bool EventFileReader::next_record() {
  std::array<char, kHeaderSize> header{};
  torn_ = left_ > 0;  // unless it turns out to be whole
  while (left_ > 0) {
    uint64_t length = 0;
    uint32_t crc = 0;
    if (left_ < kHeaderSize || !file_.read(header.data(), header.size())) break;
    left_ -= kHeaderSize;
    std::memcpy(&length, header.data(), sizeof length);
    std::memcpy(&crc, &header[sizeof length], sizeof crc);
    // Beyond a wrong length nobody knows where the next record begins.
    if (crc != masked_crc(header.data(), sizeof length) || left_ < kFooterSize || length > left_ - kFooterSize) break;
    record_.resize(length + kFooterSize);
    if (!file_.read(record_.data(), static_cast<std::streamsize>(record_.size()))) break;
    left_ -= record_.size();
    torn_ = false;
    std::memcpy(&crc, &record_[length], sizeof crc);
    record_.resize(length);
    if (crc == masked_crc(record_.data(), length)) return true;
    ++damaged_;
    torn_ = left_ > 0;
  }
  left_ = 0;
  return false;
}

bool EventFileReader::next(Event& event) {
  while (next_record()) {
    event.wall_time = 0;
    event.step = 0;
    event.scalars.clear();
    event.session_started = false;
    event.session_succeeded.reset();
    try {
      protozero::pbf_reader reader(record_);
      while (reader.next()) {
        if (is(reader, kWallTime, protozero::pbf_wire_type::fixed64)) {
          event.wall_time = reader.get_double();
        } else if (is(reader, kStep, protozero::pbf_wire_type::varint)) {
          event.step = reader.get_int64();
        } else if (is(reader, kSummary, kBytes)) {
          auto summary = reader.get_message();
          while (summary.next(kValue, kBytes)) read_value(summary.get_message(), event);
        } else {
          reader.skip();
        }
      }
      return true;
    } catch (const protozero::exception&) {
      ++damaged_;
    }
  }
  return false;
}

}  // namespace levin::report
