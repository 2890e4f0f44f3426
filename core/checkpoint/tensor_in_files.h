#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/state_json.h>

#include <memory>
#include <mutex>
#include <vector>

namespace levin {

class CheckpointFiles;

/// A tensor of a checkpoint, whole in one file or in pieces, whatever the number of ranks that wrote them. Reading a
/// range touches, and checks against the manifest, only the files that hold some of it.
class TensorInFiles final : public SavedTensor {
 public:
  /// Throws levin::Error when the pieces do not make up the whole, or when a file that says the shape is missing.
  TensorInFiles(std::shared_ptr<CheckpointFiles> files, const TensorReference& reference);

  at::ScalarType dtype() const override { return dtype_; }
  const std::vector<int64_t>& shape() const override { return shape_; }
  const std::vector<int64_t>& dimension_order() const override { return dimension_order_; }
  void read(int64_t offset, at::Tensor target) const override;
  at::Tensor read_whole() const override;
  const at::Tensor& whole() const override;

 private:
  void check_pieces() const;
  /// Returns the file of a piece, whose header agrees with the piece.
  const SafetensorsFile& file_of(const TensorPiece& piece) const;
  void read_to_host(int64_t offset, const at::Tensor& target) const;
  std::string name() const;

  const std::shared_ptr<CheckpointFiles> files_;
  at::ScalarType dtype_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> dimension_order_;
  std::vector<TensorPiece> pieces_;  ///< by offset
  mutable std::once_flag once_;
  mutable at::Tensor whole_;  ///< cached by whole()
};

}  // namespace levin
