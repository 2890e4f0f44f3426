#include "tests/fuzz/fuzz.h"

#include <levin/core/data/shards/tar_samples.h>

#include <algorithm>
#include <cstdio>

namespace {

/// Puts the checksum of each block right that looks like a header.
void put_right(std::string& archive) {
  constexpr size_t kBlock = 512;
  constexpr size_t kChecksum = 148;
  for (size_t block = 0; block + kBlock <= archive.size(); block += kBlock) {
    char* const header = archive.data() + block;
    if (std::string_view(header + 257, 5) != "ustar") continue;
    std::fill_n(header + kChecksum, 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(header[i]);
    std::snprintf(header + kChecksum, 8, "%06o", sum);
  }
}

}  // namespace

// A shard of samples, with and without the end mark that an archive needs.
void levin::fuzzing::fuzz(std::string_view input) {
  std::string archive(input);
  put_right(archive);
  for (const size_t end : {size_t{0}, size_t{1024}}) {
    archive.resize(archive.size() + end);
    const std::string path = write_file("shard.tar", archive);
    reads([&] {
      const data::TarSamples samples({path}, {.fields = {{"label", "cls"}, {"text", "txt"}, {"array", "npy"}}});
      data::Generator generator(0, 0);
      for (int64_t i = 0; i < samples.size(); ++i) samples.get(i, generator);
    });
  }
}
