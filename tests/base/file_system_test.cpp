#include <levin/core/base/file_system.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include "../support/faulty_file_system.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace levin {
namespace {

class FileSystemTest : public ::testing::Test {
 protected:
  FileSystemTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "levin_files_" + test->name() + "_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~FileSystemTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    auto file = files_.create(path(name));
    file->append(text);
    file->close();
  }
  std::string read(const std::string& name) const { return files_.read_file(path(name)); }

  FileSystem& files_ = FileSystem::current();
  std::string folder_;
};

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "files");
    return error.what();
  }
  return "nothing thrown";
}

TEST_F(FileSystemTest, NothingIsWrittenThroughALinkThatIsThere) {
  write("precious", "kept");
  std::filesystem::create_symlink("precious", path("new"));
  write("new", "text");
  EXPECT_EQ(read("new"), "text");
  std::filesystem::create_symlink("precious", path("page.unfinished"));
  files_.replace_file(path("page"), "page");
  EXPECT_EQ(read("page"), "page");
  EXPECT_EQ(read("precious"), "kept");
}

TEST_F(FileSystemTest, AFileIsReplacedWholeOrNotAtAll) {
  write("page", "first");
  EXPECT_THROW(files_.replace_file(path("page"),
                                   [](WritableFile& file) {
                                     file.append("half");
                                     throw Error("test", "no more");
                                   }),
               Error);
  EXPECT_EQ(read("page"), "first");
  EXPECT_EQ(files_.list(folder_), std::vector<std::string>{"page"});
  files_.replace_file(path("page"), "second");
  EXPECT_EQ(read("page"), "second");
}

TEST_F(FileSystemTest, AFileBeyondItsLimitIsAnErrorAndNotTheEndOfTheProcess) {
  const auto write_too_much = [this] {
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = 1000;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::cerr << message_of([this] { write("long", std::string(2000, 'x')); });
    ::_exit(3);
  };
  EXPECT_EXIT(write_too_much(), ::testing::ExitedWithCode(3), "cannot write .*long: File too large");
}

TEST_F(FileSystemTest, PipesDevicesAndFoldersAreNotRead) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string no_file = "it is a pipe or a device; valid: a regular file";
  EXPECT_EQ(message_of([&] { read("pipe"); }), "[files] cannot read " + path("pipe") + ": " + no_file);
  EXPECT_EQ(message_of([&] { files_.read_file("/dev/zero"); }), "[files] cannot read /dev/zero: " + no_file);
  EXPECT_EQ(message_of([&] { files_.read_file(folder_); }), "[files] cannot read " + folder_ + ": Is a directory");
}

TEST_F(FileSystemTest, SmallAndLargePiecesArriveInOrder) {
  std::string expected;
  auto file = files_.create(path("pieces"));
  for (const size_t size : {1u, 65'535u, 65'536u, 65'537u, 7u, 0u, 200'000u, 40'000u, 40'000u}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    file->append(piece);
    expected += piece;
  }
  file->sync();
  EXPECT_EQ(read("pieces"), expected);
  file->append("tail");
  file->close();
  EXPECT_EQ(read("pieces"), expected + "tail");
}

TEST_F(FileSystemTest, BytesAreBufferedUntilFlush) {
  auto file = files_.create(path("buffered"));
  file->append("row");
  EXPECT_EQ(read("buffered"), "");
  file->flush();
  EXPECT_EQ(read("buffered"), "row");
}

TEST_F(FileSystemTest, DestructorWritesWhatIsBuffered) {
  files_.create(path("dropped"))->append("kept");
  EXPECT_EQ(read("dropped"), "kept");
}

TEST_F(FileSystemTest, CreateTruncatesAndAppendContinues) {
  write("file", "old");
  write("file", "new");
  EXPECT_EQ(read("file"), "new");
  auto file = files_.open_append(path("file"));
  file->append("er");
  file->close();
  EXPECT_EQ(read("file"), "newer");
}

TEST_F(FileSystemTest, ErrorsNamePathAndReason) {
  EXPECT_EQ(message_of([&] { files_.create(path("missing/file")); }),
            "[files] cannot write " + path("missing/file") + ": No such file or directory");
  EXPECT_EQ(message_of([&] { files_.create(folder_); }), "[files] cannot write " + folder_ + ": Is a directory");
  EXPECT_EQ(message_of([&] { files_.read_file(path("nothing")); }),
            "[files] cannot read " + path("nothing") + ": No such file or directory");
  EXPECT_EQ(message_of([&] { files_.read_file(folder_); }), "[files] cannot read " + folder_ + ": Is a directory");
  EXPECT_EQ(message_of([&] { files_.rename(path("a"), path("b")); }),
            "[files] cannot rename " + path("a") + " to " + path("b") + ": No such file or directory");
  write("file", "");
  EXPECT_EQ(message_of([&] { files_.create_directories(path("file/below")); }),
            "[files] cannot create directory " + path("file/below") + ": Not a directory");
  EXPECT_EQ(message_of([&] { files_.list(path("file")); }),
            "[files] cannot list " + path("file") + ": Not a directory");
  EXPECT_EQ(message_of([&] { files_.sync_directory(path("nowhere")); }),
            "[files] cannot sync directory " + path("nowhere") + ": No such file or directory");
}

TEST_F(FileSystemTest, FullDiskIsReportedAndTheFileStaysFailed) {
  if (!files_.exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  auto file = files_.open_append("/dev/full");
  file->append("a row");
  const std::string expected = "[files] cannot write /dev/full: No space left on device";
  EXPECT_EQ(message_of([&] { file->flush(); }), expected);
  EXPECT_EQ(message_of([&] { file->flush(); }), expected);
  file->append("more");
  EXPECT_EQ(message_of([&] { file->close(); }), expected);
}

TEST_F(FileSystemTest, DirectoriesAreMadeListedAndRemoved) {
  files_.create_directories(path("a/b/c"));
  files_.create_directories(path("a/b/c"));
  EXPECT_TRUE(files_.create_directory(path("a/x")));
  EXPECT_FALSE(files_.create_directory(path("a/x")));
  write("a/file", "");
  EXPECT_EQ(files_.list(path("a")), (std::vector<std::string>{"b", "file", "x"}));
  EXPECT_TRUE(files_.list(path("nothing")).empty());
  files_.sync_directory(path("a"));
  files_.remove_all(path("a"));
  files_.remove_all(path("a"));
  EXPECT_FALSE(files_.exists(path("a")));
}

TEST_F(FileSystemTest, ReadsFilesThatSayTheyAreEmpty) { EXPECT_FALSE(files_.read_file("/proc/self/status").empty()); }

TEST_F(FileSystemTest, ExchangeSwapsFoldersWithWhatTheyHold) {
  files_.create_directories(path("a"));
  files_.create_directories(path("b"));
  write("a/name", "was a");
  write("b/name", "was b");
  files_.exchange(path("a"), path("b"));
  EXPECT_EQ(read("a/name"), "was b");
  EXPECT_EQ(read("b/name"), "was a");
  EXPECT_EQ(files_.list(folder_).size(), 2u);
  EXPECT_EQ(message_of([&] { files_.exchange(path("a"), path("none")); }),
            "[files] cannot exchange " + path("a") + " and " + path("none") + ": No such file or directory");
}

/// A file system without an atomic exchange.
class RenamingFileSystem : public testing::FaultyFileSystem {
 public:
  void exchange(const std::string& a, const std::string& b) override { exchange_by_renames(a, b); }
};

TEST_F(FileSystemTest, ExchangeByRenamesSwaps) {
  write("a", "was a");
  write("b", "was b");
  RenamingFileSystem files;
  files.exchange(path("a"), path("b"));
  EXPECT_EQ(read("a"), "was b");
  EXPECT_EQ(read("b"), "was a");
  EXPECT_EQ(files.list(folder_).size(), 2u);
}

TEST_F(FileSystemTest, ExchangeByRenamesIsUndoneWhenTheNewOneIsMissing) {
  write("b", "was b");
  RenamingFileSystem files;
  EXPECT_THROW(files.exchange(path("a"), path("b")), Error);
  EXPECT_EQ(read("b"), "was b");
  EXPECT_EQ(files.list(folder_).size(), 1u);
}

TEST_F(FileSystemTest, FaultyFileSystemFailsAfterBytes) {
  testing::FaultyFileSystem files;
  files.fail_after_bytes(5);
  auto file = FileSystem::current().create(path("file"));
  file->append("abc");
  EXPECT_EQ(message_of([&] { file->append("defg"); }),
            "[files] cannot write " + path("file") + ": No space left on device");
  file->flush();
  EXPECT_EQ(read("file"), "abcde");
  files.heal();
  file->append("f");
  file->close();
  EXPECT_EQ(read("file"), "abcdef");
  EXPECT_EQ(files.faults(), 1);
}

TEST_F(FileSystemTest, FaultyFileSystemFailsAfterOperations) {
  testing::FaultyFileSystem files;
  files.fail_after_operations(2, EIO);
  files.create_directories(path("x"));
  auto file = files.create(path("x/file"));
  EXPECT_EQ(message_of([&] { file->append("a"); }), "[files] cannot write " + path("x/file") + ": Input/output error");
  EXPECT_THROW(files.rename(path("x"), path("y")), Error);
  EXPECT_EQ(files.operations(), 4);
}

TEST(FileSystem, ReplacementEndsWithItsLife) {
  FileSystem* const real = &FileSystem::current();
  {
    testing::FaultyFileSystem files;
    EXPECT_EQ(&FileSystem::current(), &files);
  }
  EXPECT_EQ(&FileSystem::current(), real);
}

}  // namespace
}  // namespace levin
