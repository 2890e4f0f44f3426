#include <levin/core/data/step_rows.h>

#include <levin/core/base/descriptor.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

namespace levin::data {

namespace {

/// Makes a tensor in a file without a name, which is gone with it. Its room is taken beforehand: a disk that is full is
/// an error here, and not a signal where the tensor is written to.
at::Tensor tensor_in_file(const std::string& folder, const std::vector<int64_t>& sizes, at::ScalarType type) {
  const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
  const auto fail = [&](int error) {
    throw Error("data",
                fmt::format("cannot keep {} bytes of a replay buffer in {}: {}; valid: a folder with room for its "
                            "capacity",
                            bytes, folder, std::generic_category().message(error)));
  };
  FileSystem::current().create_directories(folder);
  std::string name = folder + "/replay-XXXXXX";
  const Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.is_open()) fail(errno);
  ::unlink(name.c_str());
  if (const int error = ::posix_fallocate(file.number(), 0, bytes); error != 0) fail(error);
  void* const memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (memory == MAP_FAILED) fail(errno);
  return at::from_blob(
      memory, sizes, [bytes](void* begin) { ::munmap(begin, static_cast<size_t>(bytes)); },
      at::TensorOptions().dtype(type));
}

/// Reads rows of a saved tensor from row `from` on.
void read_rows(const TensorLeaf& saved, int64_t from, const at::Tensor& target) {
  if (target.numel() == 0) return;
  const int64_t row_size = target.numel() / target.size(0);
  if (saved.saved != nullptr)
    saved.saved->read(from * row_size, target);
  else
    target.copy_(saved.value.narrow(0, from, target.size(0)));
}

size_t row_bytes(const at::Tensor& rows) {
  return rows.size(0) == 0 ? 0 : rows.nbytes() / static_cast<size_t>(rows.size(0));
}

}  // namespace

at::Tensor StepRows::make(at::IntArrayRef row_sizes, int64_t count, at::ScalarType type) const {
  std::vector<int64_t> sizes{count};
  sizes.insert(sizes.end(), row_sizes.begin(), row_sizes.end());
  if (folder_.empty() || c10::multiply_integers(sizes) == 0) return at::empty(sizes, at::TensorOptions().dtype(type));
  return tensor_in_file(folder_, sizes, type);
}

void StepRows::allocate(const Batch& steps) {
  std::vector<Batch::Item> columns;
  for (const auto& [name, tensor] : steps.items())
    columns.emplace_back(name, make(tensor.sizes().slice(1), count_, tensor.scalar_type()));
  columns_ = std::move(columns);
}

void StepRows::check(const Batch& steps) const {
  const auto describe = [](const at::Tensor& tensor) {
    return fmt::format("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes().slice(1), ", "));
  };
  for (const auto& [name, tensor] : columns_) {
    const at::Tensor* const given = steps.find(name);
    if (given == nullptr)
      throw Error("data",
                  fmt::format("steps of a replay buffer differ; got one without '{}'; valid: the tensors of the "
                              "first step",
                              name));
    if (given->scalar_type() != tensor.scalar_type() || given->sizes().slice(1) != tensor.sizes().slice(1))
      throw Error("data",
                  fmt::format("steps of a replay buffer differ; got '{}' as {}; valid: {}, as in the first step", name,
                              describe(*given), describe(tensor)));
  }
  for (const auto& [name, tensor] : steps.items())
    if (std::ranges::find(columns_, name, &Batch::Item::first) == columns_.end())
      throw Error("data",
                  fmt::format("steps of a replay buffer differ; got one with '{}'; valid: the tensors of the first "
                              "step",
                              name));
}

void StepRows::write(int64_t row, const Batch& steps, int64_t from) {
  for (auto& [name, rows] : columns_) {
    const size_t bytes = row_bytes(rows);
    if (bytes == 0) continue;
    std::memcpy(static_cast<char*>(rows.mutable_data_ptr()) + static_cast<size_t>(row) * bytes,
                static_cast<const char*>(steps[name].const_data_ptr()) + static_cast<size_t>(from) * bytes, bytes);
  }
}

void StepRows::read(size_t column, int64_t row, void* target) const {
  const at::Tensor& rows = columns_[column].second;
  const size_t bytes = row_bytes(rows);
  if (bytes > 0)
    std::memcpy(target, static_cast<const char*>(rows.const_data_ptr()) + static_cast<size_t>(row) * bytes, bytes);
}

at::Tensor StepRows::gather(size_t column, std::span<const int64_t> rows) const {
  const at::Tensor& all = columns_[column].second;
  std::vector<int64_t> sizes = all.sizes().vec();
  sizes[0] = std::ssize(rows);
  at::Tensor gathered = at::empty(sizes, all.options());
  auto* target = static_cast<char*>(gathered.mutable_data_ptr());
  for (const int64_t row : rows) {
    read(column, row, target);
    target += row_bytes(all);
  }
  return gathered;
}

Batch StepRows::copy(int64_t first, int64_t count) const {
  const int64_t to_end = std::min(count, count_ - first);
  Batch batch;
  for (const auto& [name, rows] : columns_) {
    at::Tensor copied = make(rows.sizes().slice(1), count, rows.scalar_type());
    copied.narrow(0, 0, to_end).copy_(rows.narrow(0, first, to_end));
    copied.narrow(0, to_end, count - to_end).copy_(rows.narrow(0, 0, count - to_end));
    batch.set(name, std::move(copied));
  }
  return batch;
}

void StepRows::restore(const State& steps, int64_t first, int64_t held) {
  std::vector<Batch::Item> columns;
  for (const State& item : steps.as_list()) {
    const TensorLeaf& leaf = item.as_list()[1].as_leaf();
    const at::IntArrayRef sizes = leaf.saved != nullptr ? at::IntArrayRef(leaf.saved->shape()) : leaf.value.sizes();
    if (sizes.empty() || sizes[0] != held)
      throw Error("checkpoint",
                  fmt::format("the state of a replay buffer contradicts itself: '{}' has [{}] of {}",
                              item.as_list()[0].as_string(), fmt::join(sizes, ", "), counted(held, "step")));
    at::Tensor rows =
        make(sizes.slice(1), count_, leaf.saved != nullptr ? leaf.saved->dtype() : leaf.value.scalar_type());
    const int64_t to_end = std::min(sizes[0], count_ - first);
    read_rows(leaf, 0, rows.narrow(0, first, to_end));
    read_rows(leaf, to_end, rows.narrow(0, 0, sizes[0] - to_end));
    columns.emplace_back(item.as_list()[0].as_string(), std::move(rows));
  }
  columns_ = std::move(columns);
}

}  // namespace levin::data
