#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

struct UnitSizes;

/// Numbers of a model's parameters and buffers, by submodule.
struct ModelTable {
  struct Row {
    std::string name;  ///< dotted
    std::string type;
    int64_t parameters = 0;  ///< elements, each tensor within this submodule once
    bool training = true;    ///< train or eval mode
    // Of the forward, in words; "?" where it is not known.
    std::string inputs = "?";
    std::string outputs = "?";
    std::string flops = "?";
  };

  std::vector<Row> rows;  ///< submodules down to the depth asked for
  int64_t trainable = 0;  ///< elements of the whole model's parameters, each tensor once
  int64_t frozen = 0;     ///< parameters that need no gradient, likewise
  int64_t parameter_bytes = 0;
  int64_t buffers = 0;  ///< elements of all buffers, each tensor once
  int64_t buffer_bytes = 0;
  bool has_sizes = false;         ///< the rows have their inputs, outputs and operations
  std::string batch_flops = "?";  ///< operations of the forward of a batch

  /// Adds what units were called with, by their paths, and the operations of a whole batch.
  void add_sizes(const std::map<std::string, UnitSizes>& sizes, std::optional<int64_t> flops);
  /// Writes the table as several lines, without a newline at the end.
  std::string to_text() const;
};

/// Counts a module's parameters and buffers. `max_depth`: levels of submodules that get a row; -1 all, 0 none. A
/// submodule registered twice has two rows and counts once.
ModelTable tabulate_model(const torch::nn::Module& module, int64_t max_depth);

/// Writes a count in few characters: "123", "1.2 K", "101 K", "2.0 M".
std::string short_count(int64_t count);

}  // namespace levin
