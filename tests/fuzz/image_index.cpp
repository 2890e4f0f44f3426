#include "tests/fuzz/fuzz.h"

#include <levin/core/data/image_index.h>

#include <xxhash.h>

#include <cstdio>

// The index of a folder of images, as it is kept.
void levin::fuzzing::fuzz(std::string_view input) {
  static const std::string root = [] {
    const std::string made = std::filesystem::canonical(folder()).string() + "/images";
    std::filesystem::create_directories(made + "/cat");
    write_file("images/cat/1.png", "");
    return made;
  }();
  static const std::string name = [] {
    char text[64];
    std::snprintf(text, sizeof text, "images-%016llx.index",
                  static_cast<unsigned long long>(XXH3_64bits(root.data(), root.size())));
    return std::string(text);
  }();
  write_file(name, "levin image index 2\n" + root + "\n" + std::string(input));
  reads([&] {
    const data::ImageIndex index = data::index_images(root, folder());
    if (index.files.size() != index.labels.size()) fail("an index that has not one label for each file");
    for (const int64_t label : index.labels)
      if (label < 0 || label >= std::ssize(index.classes)) fail("a label without a class");
  });
}
