#include <levin/core/checkpoint/tensor_in_files.h>

#include <levin/core/base/error.h>
#include <levin/core/base/shape_bytes.h>
#include <levin/core/checkpoint/checkpoint_files.h>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace levin {
namespace {

/// Elements on their way to a device pass through memory of this many bytes.
constexpr int64_t kStagingBytes = int64_t{16} << 20;

}  // namespace

TensorInFiles::TensorInFiles(std::shared_ptr<CheckpointFiles> files, const TensorReference& reference)
    : files_(std::move(files)), dimension_order_(reference.dimension_order) {
  if (reference.in_pieces()) {
    dtype_ = *reference.dtype;
    shape_ = reference.shape;
    pieces_ = reference.pieces;
    check_pieces();
    return;
  }
  const SafetensorsFile& file = files_->unchecked(reference.file);
  dtype_ = file.dtype(reference.name);
  shape_ = file.shape(reference.name);
  pieces_ = {{reference.file, reference.name, 0, c10::multiply_integers(shape_)}};
}

std::string TensorInFiles::name() const { return pieces_.empty() ? "" : pieces_.front().name; }

void TensorInFiles::check_pieces() const {
  if (!bytes_of_shape(shape_, c10::elementSize(dtype_)))
    throw Error("checkpoint",
                fmt::format("tensor '{}' has a shape beyond all memory; got [{}]", name(), fmt::join(shape_, ", ")));
  int64_t end = 0;
  for (const TensorPiece& piece : pieces_) {
    if (piece.offset != end || piece.count <= 0 || piece.count > std::numeric_limits<int64_t>::max() - end)
      throw Error("checkpoint", fmt::format("the pieces of tensor '{}' do not follow each other; got {} elements at {} "
                                            "in {}; valid: at {}",
                                            name(), piece.count, piece.offset, piece.file, end));
    end += piece.count;
  }
  if (end != c10::multiply_integers(shape_))
    throw Error("checkpoint", fmt::format("the pieces of tensor '{}' are not the whole; got {} elements; valid: {}",
                                          name(), end, c10::multiply_integers(shape_)));
}

void TensorInFiles::read(int64_t offset, at::Tensor target) const {
  const int64_t count = target.numel();
  const int64_t size = c10::multiply_integers(shape_);
  if (target.scalar_type() != dtype_ || !target.is_contiguous())
    throw Error("checkpoint",
                fmt::format("cannot read tensor '{}' into a tensor of type {}{}; valid: contiguous, {}", name(),
                            c10::toString(target.scalar_type()),
                            target.is_contiguous() ? "" : " that is not contiguous", c10::toString(dtype_)));
  if (offset < 0 || offset > size || count > size - offset)
    throw Error("checkpoint",
                fmt::format("cannot read {} elements at {} of tensor '{}', which has {}", count, offset, name(), size));
  const at::Tensor flat = target.detach().view({-1});
  if (flat.is_cpu()) {
    read_to_host(offset, flat);
    return;
  }
  const int64_t step = kStagingBytes / static_cast<int64_t>(c10::elementSize(dtype_));
  const at::Tensor staging = at::empty({std::min(count, step)}, dtype_);
  for (int64_t done = 0; done < count; done += step) {
    const at::Tensor part = staging.narrow(0, 0, std::min(step, count - done));
    read_to_host(offset + done, part);
    flat.narrow(0, done, part.numel()).copy_(part);
  }
}

const SafetensorsFile& TensorInFiles::file_of(const TensorPiece& piece) const {
  const SafetensorsFile& file = files_->checked(piece.file);
  if (file.dtype(piece.name) != dtype_ || c10::multiply_integers(file.shape(piece.name)) != piece.count)
    throw Error("checkpoint", fmt::format("{} holds something else than {} elements of type {} as '{}'", piece.file,
                                          piece.count, c10::toString(dtype_), piece.name));
  return file;
}

/// The range lies within the tensor, and `target` is flat.
void TensorInFiles::read_to_host(int64_t offset, const at::Tensor& target) const {
  const int64_t end = offset + target.numel();
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                [](int64_t position, const TensorPiece& p) { return position < p.offset; });
  if (piece != pieces_.begin()) --piece;
  for (int64_t position = offset; position < end; ++piece) {
    const int64_t count = std::min(end, piece->offset + piece->count) - position;
    file_of(*piece).read_elements(piece->name, position - piece->offset, target.narrow(0, position - offset, count));
    position += count;
  }
}

at::Tensor TensorInFiles::read_whole() const {
  // Tensors made under inference mode could not be updated in place later.
  const c10::InferenceMode guard(false);
  for (const TensorPiece& piece : pieces_) file_of(piece);  // before memory is taken for what they say
  const at::Tensor tensor = at::empty(shape_, dtype_);
  read(0, tensor);
  return with_dimension_order(tensor, dimension_order_);
}

const at::Tensor& TensorInFiles::whole() const {
  std::call_once(once_, [this] { whole_ = read_whole(); });
  return whole_;
}

}  // namespace levin
