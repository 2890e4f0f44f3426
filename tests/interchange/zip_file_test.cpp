#include <levin/core/interchange/zip_file.h>

#include <levin/core/base/error.h>
#include <levin/core/interchange/weights.h>

#include "folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

struct Entry {
  std::string name;
  uint32_t local = 0;  ///< where its header is
  uint32_t size = 0;
};

/// A zip archive of one stored content, which the directory may name several times.
std::string archive_of(const std::string& content, const std::vector<Entry>& entries) {
  const auto crc =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const unsigned char*>(content.data()), content.size()));
  std::string bytes("PK\3\4\x14\0\0\0\0\0\0\0\0\0", 14);
  for (const uint32_t number : {crc, static_cast<uint32_t>(content.size()), static_cast<uint32_t>(content.size())})
    append(bytes, number);
  append(bytes, uint32_t{1});  // lengths of the name and the extra field
  bytes += "a" + content;
  const auto directory = static_cast<uint32_t>(bytes.size());
  for (const Entry& entry : entries) {
    bytes += std::string("PK\1\2\x14\0\x14\0\0\0\0\0\0\0\0\0", 16);
    for (const uint32_t number : {crc, entry.size, entry.size}) append(bytes, number);
    append(bytes, static_cast<uint16_t>(entry.name.size()));
    bytes += std::string(12, '\0');
    append(bytes, entry.local);
    bytes += entry.name;
  }
  const auto size = static_cast<uint32_t>(bytes.size()) - directory;
  bytes += std::string("PK\5\6\0\0\0\0", 8);
  append(bytes, static_cast<uint16_t>(entries.size()));
  append(bytes, static_cast<uint16_t>(entries.size()));
  append(bytes, size);
  append(bytes, directory);
  append(bytes, uint16_t{0});
  return bytes;
}

std::string zip_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ZipFile, MembersThatShareBytesAreRefused) {
  const std::string content(100'000, 'x');
  const auto size = static_cast<uint32_t>(content.size());
  const std::string one = archive_of(content, {{"a", 0, size}});
  EXPECT_EQ(ZipFile(one, "one.pth").checked("a").size(), content.size());
  std::vector<Entry> many;
  for (int i = 0; i < 100; ++i) many.push_back({"data/" + std::to_string(i), 0, size});
  EXPECT_THAT(zip_error([&] { ZipFile(archive_of(content, many), "bomb.pth"); }),
              HasSubstr("bomb.pth is damaged or cut short: its member 'data/1' overlaps others"));
  EXPECT_THAT(zip_error([&] {
                ZipFile(archive_of(content, {{"a", 0, size + 100'000}}), "long.pth");
              }),
              HasSubstr("its member 'a' lies outside of the file"));
}

TEST(OpenWeights, PipesAreRefusedBeforeTheyAreOpened) {
  const testing::Folder folder;
  const auto pipe = [&](const std::string& name) {
    EXPECT_EQ(::mkfifo(folder.path(name).c_str(), 0600), 0);
    return folder.path(name);
  };
  for (const char* name : {"a.pth", "a.safetensors", "a.index.json", "a.ckpt"}) {
    const std::string path = pipe(name);
    EXPECT_THAT(zip_error([&] { open_weights(path); }),
                HasSubstr("cannot read " + path + ": it is a pipe or a device"));
  }
  const std::string part = pipe("pytorch_model.bin");
  EXPECT_THAT(zip_error([&] { open_weights(folder.path()); }), HasSubstr("cannot read " + part + ": it is a pipe"));
}

}  // namespace
}  // namespace levin
