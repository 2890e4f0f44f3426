#pragma once

#include <ATen/core/Tensor.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/input_file.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

class WritableFile;

using NamedTensor = std::pair<std::string, at::Tensor>;
/// A tensor in memory or in another checkpoint's files; its placement is ignored.
using NamedLeaf = std::pair<std::string, TensorLeaf>;

/// Writes tensors in the safetensors format (https://github.com/huggingface/safetensors): the header's length, a JSON
/// header, then the elements of each tensor in row-major order, whatever its strides. Tensors of a multiple of 64 bytes
/// come first, each aligned to 64, then those of wide elements, each aligned to its elements. A tensor on another
/// device, or one that is not contiguous, is copied; only one at a time. A saved tensor is copied from its file through
/// a buffer of 16 MiB. Throws levin::Error for a name given twice and for a tensor that the format cannot hold.
void write_safetensors(WritableFile& file, const std::vector<NamedLeaf>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
void write_safetensors(WritableFile& file, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Throws levin::Error where the format cannot hold a tensor, or its name.
void check_fits_safetensors(const std::string& name, const at::Tensor& tensor);

/// A safetensors file opened for reading. The constructor reads the header alone and checks it: lengths, JSON, types,
/// shapes, and that the tensors fill the rest of the file without gap or overlap.
class SafetensorsFile {
 public:
  /// Throws levin::Error saying what is wrong with the file.
  explicit SafetensorsFile(const std::string& path);

  /// Returns the tensors' names, in the order of their data in the file.
  const std::vector<std::string>& names() const { return names_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(std::string_view name) const { return entries_.find(name) != entries_.end(); }

  // Properties of one tensor. Each throws levin::Error when there is none of that name.
  const std::vector<int64_t>& shape(std::string_view name) const { return entry(name).shape; }
  at::ScalarType dtype(std::string_view name) const { return entry(name).type; }
  /// Returns the size of its elements in bytes.
  uint64_t bytes(std::string_view name) const { return entry(name).end - entry(name).begin; }
  /// Reads it into a new contiguous tensor on the CPU.
  at::Tensor read(std::string_view name) const;
  /// Reads elements of the flattened tensor, from `offset` on, into `target`: contiguous, on the CPU, of the same type.
  void read_elements(std::string_view name, int64_t offset, at::Tensor target) const;

 private:
  struct Entry {
    at::ScalarType type;
    std::vector<int64_t> shape;
    uint64_t begin;  ///< offset of the first byte after the header
    uint64_t end;
  };

  const Entry& entry(std::string_view name) const;
  void parse_header(const std::string& header);
  void check_layout();

  InputFile file_;
  uint64_t data_start_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> metadata_;
};

/// Returns the format's name of an element type, such as "F32"; throws levin::Error for a type that it lacks.
const char* safetensors_type_name(at::ScalarType type);
/// Returns the element type of such a name; nothing for an unknown name.
std::optional<at::ScalarType> safetensors_type(std::string_view name);

}  // namespace levin
