#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Describes a checkpoint in words: its manifest, files and sizes, sections, cursor, hyper-parameters and versions;
/// with `with_tensors` every tensor's name, type, shape and size. Throws levin::Error when the manifest or state.json
/// is damaged; other files are not read beyond their headers.
std::string describe_checkpoint(const std::string& path, bool with_tensors);

/// Differences of two checkpoints.
struct CheckpointDifference {
  std::vector<std::string> lines;  ///< one for each place that differs
  int64_t same_tensors = 0;        ///< equal bit by bit
  int64_t same_values = 0;
  bool equal() const { return lines.empty(); }
};

/// Compares two whole trees: tensors bit by bit, plain values with their types, configurations option by option. What
/// only manifests say (such as the time of writing) and tensors' strides do not count. Throws levin::Error when one of
/// the two is not whole.
CheckpointDifference diff_checkpoints(const std::string& a, const std::string& b);

/// Lays out rows in aligned columns, each line indented by two spaces; the first row is the heading.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

}  // namespace levin
