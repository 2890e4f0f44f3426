// Seconds that the list of a large folder of images takes: the first time, when all folders are read, and again, when
// the list that was kept is used. Makes the folder below FOLDER, of empty files in 1000 classes, where it is not there.
//
//   image_index_benchmark FOLDER [FILES]

#include "measure.h"

#include <levin/core/data/image_index.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

constexpr int64_t kClasses = 1000;

void make_files(const std::string& root, int64_t count) {
  for (int64_t label = 0; label < kClasses; ++label) {
    const std::string folder = root + "/class_" + std::to_string(label);
    std::filesystem::create_directories(folder);
    for (int64_t i = label; i < count; i += kClasses)
      std::ofstream(folder + "/photograph_" + std::to_string(i) + ".jpg").flush();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: image_index_benchmark FOLDER [FILES]\n");
    return 2;
  }
  const std::string root = std::string(argv[1]) + "/images";
  const std::string kept = std::string(argv[1]) + "/index";
  const int64_t count = argc == 3 ? std::atoll(argv[2]) : 1'000'000;
  if (!std::filesystem::exists(root)) make_files(root, count);
  std::filesystem::remove_all(kept);
  for (const char* name : {"first time", "again"}) {
    const auto begin = levin::benchmarks::Clock::now();
    const auto index = levin::data::index_images(root, kept);
    std::printf("%-12s %6.2f s, %zu images\n", name, levin::benchmarks::seconds_since(begin), index.files.size());
  }
  return 0;
}
