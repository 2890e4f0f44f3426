#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levin::data {

/// The images of a folder that has a folder for each class, in torchvision's order: classes by name, in a class by
/// folder and then by file name. Other files are left out.
struct ImageIndex {
  std::string root = {};
  std::vector<std::string> classes = {};  ///< names of the folders, sorted
  std::vector<std::string> files = {};    ///< paths below `root`
  std::vector<int64_t> labels = {};       ///< positions in `classes`, one for each file
  int64_t num_other_files = 0;

  std::string path(int64_t index) const { return root + "/" + files[static_cast<size_t>(index)]; }
};

/// Looks the images of a folder up: .jpg, .jpeg, .png and .webp in any letters, in folders below a class's, too. The
/// result is kept in `cache_folder` (empty: not kept) and used again until a folder's time of change differs. Says how
/// far it is where that takes seconds. Throws levin::Error when there is no such folder, class or image, naming classes
/// without images.
ImageIndex index_images(const std::string& root, const std::string& cache_folder);

/// Returns where indices are kept unless an option says otherwise: $XDG_CACHE_HOME/levin, else ~/.cache/levin; empty
/// where there is no home.
std::string default_index_folder();

}  // namespace levin::data
