#include <levin/core/data/idx_file.h>

#include <levin/core/base/error.h>

#include "idx_writer.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <fstream>
#include <iterator>

namespace levin::data {
namespace {

std::string message_of(const std::string& path, int64_t dimensions = 1) {
  try {
    read_idx(path, dimensions);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(IdxFile, ReadsPlainAndCompressed) {
  const TemporaryFolder folder;
  const std::string bytes = idx_bytes({2, 3}, std::string("\x00\x01\x02\xFD\xFE\xFF", 6));
  const auto expected = torch::tensor({{0, 1, 2}, {253, 254, 255}}, torch::kByte);
  EXPECT_TRUE(read_idx(folder.write("plain", bytes), 2).equal(expected));
  write_gzip(folder.path("compressed.gz"), bytes);
  EXPECT_TRUE(read_idx(folder.path("compressed.gz"), 2).equal(expected));
  EXPECT_EQ(read_idx(folder.write("none", idx_bytes({0}, "")), 1).numel(), 0);
}

TEST(IdxFile, RefusesOtherFiles) {
  const TemporaryFolder folder;
  EXPECT_NE(message_of(folder.write("text", "hello, world"))
                .find("is not an IDX file of bytes with 1 dimension; it begins with "
                      "68 65 6c 6c, expected 00 00 08 01"),
            std::string::npos);
  EXPECT_NE(
      message_of(folder.write("labels", idx_bytes({1}, "a")), 3).find("not an IDX file of bytes with 3 dimensions"),
      std::string::npos);
  EXPECT_NE(message_of(folder.write("empty", "")).find("not an IDX file"), std::string::npos);
  EXPECT_NE(message_of(folder.path("missing")).find("No such file"), std::string::npos);
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of(folder.path("pipe")).find("it is a pipe or a device"), std::string::npos);
}

TEST(IdxFile, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_NE(message_of(folder.write("short", idx_bytes({10}, "abc")))
                .find("expected 10 bytes of data after its header, found 3"),
            std::string::npos);
  EXPECT_NE(message_of(folder.write("header", idx_bytes({10}, "").substr(0, 6))).find("truncated"), std::string::npos);
  EXPECT_NE(message_of(folder.write("long", idx_bytes({2}, "abc"))).find("more than the 2 bytes"), std::string::npos);
  EXPECT_NE(message_of(folder.write("promise", idx_bytes({0xFFFFFFFF}, "abc"))).find("promises 4294967295 bytes"),
            std::string::npos);
  EXPECT_NE(message_of(folder.write("strides", idx_bytes({0, 0xE5FFFFFF, 0xFFFFFFFF}, "")), 3)
                .find("says that it has 0 x 3858759679 x 4294967295 values"),
            std::string::npos);

  std::string data;
  for (int i = 0; i < 5000; ++i) data.push_back(static_cast<char>(i * i % 251));
  write_gzip(folder.path("whole.gz"), idx_bytes({5000}, data));
  std::ifstream whole(folder.path("whole.gz"), std::ios::binary);
  std::string compressed((std::istreambuf_iterator<char>(whole)), {});
  EXPECT_NE(message_of(folder.write("cut.gz", compressed.substr(0, compressed.size() / 2))).find("expected 5000 bytes"),
            std::string::npos);
  compressed[compressed.size() / 2] = static_cast<char>(compressed[compressed.size() / 2] ^ 0x55);
  EXPECT_FALSE(message_of(folder.write("flipped.gz", compressed)).empty());
}

}  // namespace
}  // namespace levin::data
