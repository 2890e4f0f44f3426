#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

/// What the fuzz targets share. Each defines `fuzz`, which is given bytes that may be anything.
namespace levin::fuzzing {

void fuzz(std::string_view input);

/// Ends the process as a crash, which libFuzzer keeps the input of.
[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

/// Whether a text has a word in it, without libFuzzer's seeing what is looked for: it would put that into inputs.
__attribute__((no_sanitize("coverage"))) inline bool has_word(const char* text, const char* word) {
  for (; *text != '\0'; ++text) {
    size_t length = 0;
    while (word[length] != '\0' && text[length] == word[length]) ++length;
    if (word[length] == '\0') return true;
  }
  return false;
}

/// Runs a reader. Levin's own errors are what a bad input is to end with; any other one leaves the target and counts as
/// a crash, as does one with a stack of LibTorch's in its message. Returns whether the input was taken.
template <class Action>
bool reads(const Action& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    if (has_word(error.what(), "Exception raised from")) fail("an error's message has a stack of LibTorch's");
    return false;
  }
}

/// A folder of this process, below that of scripts/fuzz, which removes it: libFuzzer runs no destructors.
inline const std::string& folder() {
  static const std::string made = [] {
    const char* const given = std::getenv("TMPDIR");
    std::string path = std::string(given == nullptr ? "/tmp" : given) + "/levin-fuzz-" + std::to_string(getpid());
    std::filesystem::create_directories(path);
    return path;
  }();
  return made;
}

/// Writes a file into folder() and returns its path.
inline std::string write_file(const std::string& name, std::string_view bytes) {
  std::string path = folder() + "/" + name;
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0 || write(descriptor, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    fail("the input could not be written");
  close(descriptor);
  return path;
}

}  // namespace levin::fuzzing

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  levin::log::set_sink([](const std::string& /*line*/) {});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  levin::fuzzing::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
