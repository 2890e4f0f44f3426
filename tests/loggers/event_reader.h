#pragma once

#include <levin/core/base/file_system.h>

#include <gtest/gtest.h>
#include <protozero/pbf_reader.hpp>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {

/// CRC-32C bit by bit, from its definition: reflected polynomial 0x82F63B78.
inline uint32_t plain_crc32c(const std::string& data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::vector<std::pair<std::string, float>> scalars;
  std::map<std::string, std::string> other_values;  ///< tag -> Summary.Value message
};

/// The records of an event file. Fails the test at a wrong length or checksum.
inline std::vector<std::string> read_records(const std::string& path) {
  const std::string file = FileSystem::current().read_file(path);
  const auto masked = [](const std::string& data) {
    const uint32_t crc = plain_crc32c(data);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    uint32_t crc = 0;
    if (at + 12 > file.size()) {
      ADD_FAILURE() << path << ": a record is cut at byte " << at;
      break;
    }
    std::memcpy(&length, &file[at], sizeof length);
    std::memcpy(&crc, &file[at + 8], sizeof crc);
    EXPECT_EQ(crc, masked(file.substr(at, 8)));
    if (at + 16 + length > file.size()) {
      ADD_FAILURE() << path << ": a record is cut at byte " << at;
      break;
    }
    records.push_back(file.substr(at + 12, length));
    std::memcpy(&crc, &file[at + 12 + length], sizeof crc);
    EXPECT_EQ(crc, masked(records.back()));
    at += 16 + length;
  }
  return records;
}

inline ReadEvent parse_event(const std::string& record) {
  ReadEvent event;
  protozero::pbf_reader reader(record);
  while (reader.next()) {
    switch (reader.tag()) {
      case 1:
        event.wall_time = reader.get_double();
        break;
      case 2:
        event.step = reader.get_int64();
        break;
      case 3:
        event.file_version = reader.get_string();
        break;
      case 5: {
        protozero::pbf_reader summary = reader.get_message();
        while (summary.next(1)) {
          const auto message = summary.get_view();
          protozero::pbf_reader value(message);
          std::string tag;
          while (value.next()) {
            if (value.tag() == 1)
              tag = value.get_string();
            else if (value.tag() == 2)
              event.scalars.emplace_back(tag, value.get_float());
            else {
              event.other_values[tag] = std::string(message.data(), message.size());
              value.skip();
            }
          }
        }
        break;
      }
      default:
        reader.skip();
    }
  }
  return event;
}

inline std::vector<ReadEvent> read_events(const std::string& path) {
  std::vector<ReadEvent> events;
  for (const auto& record : read_records(path)) events.push_back(parse_event(record));
  return events;
}

}  // namespace levin::testing
