#include <levin/core/checkpoint/checksum.h>

#include "checkpoint_fixture.h"

namespace levin {
namespace {

class ChecksumTest : public testing::CheckpointTest {};

// Values printed by xxh128sum 0.8.1.
TEST_F(ChecksumTest, HasTheHexFormOfTheReferenceTool) {
  EXPECT_EQ(checksum_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(checksum_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST_F(ChecksumTest, FileBeingWrittenIsSummarizedAsItIsOnDisk) {
  std::string bytes(3'000'001, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  ChecksumFile file(FileSystem::current().create(path("data")));
  file.append(bytes.data(), 5);
  file.append(bytes.data() + 5, bytes.size() - 5);
  file.append("");
  file.sync();
  file.close();
  EXPECT_EQ(testing::read_bytes(path("data")), bytes);
  EXPECT_EQ(file.summary(), (FileSummary{bytes.size(), checksum_of(bytes)}));
  EXPECT_EQ(summarize_file(path("data")), file.summary());
}

TEST_F(ChecksumTest, EmptyAndMissingFile) {
  testing::write_bytes(path("empty"), "");
  EXPECT_EQ(summarize_file(path("empty")), (FileSummary{0, checksum_of("")}));
  EXPECT_EQ(testing::message_of([&] { summarize_file(path("none")); }),
            "[checkpoint] cannot read " + path("none") + ": No such file or directory");
}

}  // namespace
}  // namespace levin
