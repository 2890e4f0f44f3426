#include <levin/core/c/array_view.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <optional>

namespace levin {
namespace {

constexpr int32_t kMostDimensions = 16;
constexpr size_t kMostArrays = 1024;

std::optional<at::ScalarType> scalar_type(int32_t dtype) {
  switch (dtype) {
    case LEVIN_FLOAT32:
      return at::kFloat;
    case LEVIN_FLOAT64:
      return at::kDouble;
    case LEVIN_INT32:
      return at::kInt;
    case LEVIN_INT64:
      return at::kLong;
    default:
      return std::nullopt;
  }
}

at::Tensor view_array(const levin_array& array, const std::string& name) {
  const auto refuse = [&](const std::string& what) { throw ArgumentError(name + what); };
  if (array.struct_size != sizeof(levin_array))
    refuse(fmt::format(".struct_size is wrong; got {}; valid: sizeof(levin_array), which is {} here", array.struct_size,
                       sizeof(levin_array)));
  const auto type = scalar_type(array.dtype);
  if (!type)
    refuse(
        fmt::format(".dtype is none of a levin_dtype; got {}; valid: LEVIN_FLOAT32, LEVIN_FLOAT64, LEVIN_INT32, "
                    "LEVIN_INT64",
                    array.dtype));
  if (array.ndim < 0 || array.ndim > kMostDimensions)
    refuse(fmt::format(".ndim is out of range; got {}; valid: 0 to {}", array.ndim, kMostDimensions));
  if (array.ndim > 0 && array.shape == nullptr)
    refuse(fmt::format(".shape is a null pointer; valid: {} numbers", array.ndim));
  const auto count = static_cast<size_t>(array.ndim);
  const at::IntArrayRef shape(array.shape, count);
  // Bytes from the first element to behind the last one, which must be countable.
  int64_t elements = 1;
  int64_t last = 0;
  std::vector<int64_t> strides(count);
  bool is_countable = true;
  for (size_t i = count; i-- > 0;) {
    if (shape[i] < 0)
      refuse(fmt::format(".shape has a negative number; got {}; valid: 0 or more", describe_shape(shape)));
    strides[i] = array.strides != nullptr ? array.strides[i] : elements;
    if (strides[i] < 0)
      refuse(
          fmt::format(".strides has a negative number; got {}; valid: 0 or more elements; hint: copy an array that "
                      "runs backwards",
                      describe_shape({array.strides, count})));
    is_countable = is_countable && !__builtin_mul_overflow(elements, shape[i], &elements);
    int64_t span = 0;
    if (shape[i] > 1)
      is_countable = is_countable && !__builtin_mul_overflow(shape[i] - 1, strides[i], &span) &&
                     !__builtin_add_overflow(last, span, &last);
  }
  if (!is_countable || last > std::numeric_limits<int64_t>::max() / 16)
    refuse(fmt::format(" is larger than any memory; got the shape {} with strides {}", describe_shape(shape),
                       describe_shape(strides)));
  if (array.data == nullptr && elements > 0) refuse(".data is a null pointer; valid: the address of the first element");
  return at::from_blob(array.data, shape, strides, at::TensorOptions().dtype(*type));
}

}  // namespace

std::string describe_shape(at::IntArrayRef shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::vector<at::Tensor> view_arrays(const levin_array* arrays, size_t count, const char* name) {
  if (count == 0) throw ArgumentError(fmt::format("num_{} is 0; valid: 1 or more", name));
  // Before memory behind the arrays is read.
  if (count > kMostArrays)
    throw ArgumentError(fmt::format("num_{} is out of range; got {}; valid: up to {}", name, count, kMostArrays));
  if (arrays == nullptr) throw ArgumentError(fmt::format("{} is a null pointer; valid: {} arrays", name, count));
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(view_array(arrays[i], fmt::format("{}[{}]", name, i)));
  return tensors;
}

void write_arrays(const std::vector<at::Tensor>& values, const levin_array* arrays, size_t count, const char* name) {
  const std::vector<at::Tensor> targets = view_arrays(arrays, count, name);
  if (values.size() != count)
    throw ArgumentError(
        fmt::format("num_{} is {}, but the model gives {}", name, count, counted(std::ssize(values), "array")));
  for (size_t i = 0; i < count; ++i) {
    if (targets[i].sizes() != values[i].sizes())
      throw ArgumentError(fmt::format("{}[{}].shape differs from that of the result; got {}; valid: {}", name, i,
                                      describe_shape(targets[i].sizes()), describe_shape(values[i].sizes())));
    if (!c10::canCast(values[i].scalar_type(), targets[i].scalar_type()))
      throw ArgumentError(fmt::format(
          "{}[{}].dtype cannot hold the result, which is floating; valid: LEVIN_FLOAT32, LEVIN_FLOAT64", name, i));
    if (at::has_internal_overlap(targets[i]) == at::MemOverlap::Yes)
      throw ArgumentError(fmt::format("{}[{}].strides lets elements share memory; got {}", name, i,
                                      describe_shape(targets[i].strides())));
  }
  for (size_t i = 0; i < count; ++i) targets[i].copy_(values[i]);
}

}  // namespace levin
