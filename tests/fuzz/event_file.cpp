#include "tests/fuzz/fuzz.h"

#include <levin/core/tools/report/event_file_reader.h>

#include <boost/crc.hpp>

#include <bit>

namespace {

std::string masked_crc(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t masked = std::rotr(static_cast<uint32_t>(crc.checksum()), 15) + 0xa282ead8u;
  return {reinterpret_cast<const char*>(&masked), sizeof masked};
}

void read_all(const std::string& path) {
  levin::fuzzing::reads([&] {
    levin::report::EventFileReader reader(path);
    levin::report::Event event;
    while (reader.next(event)) {
    }
  });
}

}  // namespace

// A file of TensorBoard's events, and an event in a record whose checksums are right.
void levin::fuzzing::fuzz(std::string_view input) {
  read_all(write_file("events", input));
  const uint64_t size = input.size();
  const std::string length(reinterpret_cast<const char*>(&size), sizeof size);
  read_all(write_file("events", length + masked_crc(length) + std::string(input) + masked_crc(input)));
}
