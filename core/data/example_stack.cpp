#include <levin/core/data/example_stack.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

namespace levin::data {

namespace {

constexpr std::string_view kComponent = "data";

/// Whether its bytes can be copied as they are and nothing is lost that way.
bool is_plain_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.requires_grad() && !tensor.is_quantized();
}

/// Asks for large pages. More than 32 MiB are fresh memory each time, whatever the C library keeps: with pages of 4 KiB
/// the system is entered for each of a batch's ten thousand.
void use_large_pages(const at::Tensor& tensor) {
  constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
  const uintptr_t last = (begin + tensor.nbytes()) / kLargePage * kLargePage;
  // Where the system has none, nothing changes.
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

std::string describe(at::IntArrayRef shape, at::ScalarType type) {
  return fmt::format("{} {}", c10::str(shape), c10::toString(type));
}

/// Whether two shapes can be those of images, [channels, height, width], that differ in height or width.
bool are_images(at::IntArrayRef a, at::IntArrayRef b) {
  return a.size() == 3 && b.size() == 3 && a[0] == b[0] && (a[0] == 1 || a[0] == 3 || a[0] == 4) && a != b;
}

}  // namespace

void ExampleStack::begin(const Batch& first) {
  columns_.reserve(first.items().size());
  for (const auto& [name, tensor] : first.items()) {
    if (!tensor.defined()) throw Error(kComponent, fmt::format("the tensor '{}' of an example is undefined", name));
    Column& column = columns_.emplace_back();
    column.name = name;
    if (!is_plain_cpu(tensor)) {
      column.held.reserve(static_cast<size_t>(num_examples_));
      continue;
    }
    c10::SmallVector<int64_t, 5> shape{num_examples_};
    shape.append(tensor.sizes().begin(), tensor.sizes().end());
    column.stacked = at::empty(shape, tensor.options());
    use_large_pages(column.stacked);
    column.next_row = static_cast<char*>(column.stacked.mutable_data_ptr());
    column.row_bytes = tensor.nbytes();
  }
}

void ExampleStack::append(Column& column, const at::Tensor& tensor) {
  const bool copies = column.stacked.defined();
  if (count_ > 0) {
    const at::Tensor& known = copies ? column.stacked : column.held.front();
    const at::IntArrayRef shape = copies ? known.sizes().slice(1) : known.sizes();
    if (!tensor.defined() || tensor.sizes() != shape || tensor.scalar_type() != known.scalar_type())
      throw Error(
          kComponent,
          fmt::format("cannot stack the examples of a batch: '{}' is {} in example 0 and {} in example {}; hint: {}",
                      column.name, describe(shape, known.scalar_type()),
                      tensor.defined() ? describe(tensor.sizes(), tensor.scalar_type()) : "undefined", count_,
                      tensor.defined() && tensor.sizes() == shape
                          ? "say the types of tensors where they are made: that of those without is the step's"
                      : tensor.defined() && are_images(shape, tensor.sizes())
                          ? "give images one size: transforms: [resize: {size: [224, 224]}]"
                          : "pad them to one shape, or override collate()"));
  }
  if (!copies) {
    column.held.push_back(tensor);
    return;
  }
  if (is_plain_cpu(tensor) && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    if (column.row_bytes > 0) std::memcpy(column.next_row, tensor.const_data_ptr(), column.row_bytes);
  } else {
    column.stacked.select(0, count_).copy_(tensor);
  }
  column.next_row += column.row_bytes;
}

void ExampleStack::append_texts(const Batch& example) {
  const auto& items = example.text_items();
  if (count_ == 0)
    for (const auto& [name, texts] : items) texts_.push_back({name, {}});
  if (items.size() != texts_.size())
    throw Error(kComponent,
                fmt::format("cannot stack the examples of a batch: example 0 has {} kinds of texts, example "
                            "{} has {}",
                            texts_.size(), count_, items.size()));
  for (auto& [name, stacked] : texts_) {
    const auto& texts = example.texts(name);
    if (texts.size() != 1)
      throw Error(kComponent,
                  fmt::format("example {} of a batch has {} texts '{}'; valid: one", count_, texts.size(), name));
    stacked.push_back(texts.front());
  }
}

void ExampleStack::add(const Batch& example) {
  LEVIN_CHECK(count_ < num_examples_, "more examples than announced");
  const auto& items = example.items();
  if (count_ == 0) begin(example);
  append_texts(example);
  if (items.size() != columns_.size())
    throw Error(kComponent,
                fmt::format("cannot stack the examples of a batch: example 0 has {} tensors, example {} has {}",
                            columns_.size(), count_, items.size()));
  // The tensors of an example nearly always stand in the same order.
  for (size_t place = 0; place < columns_.size(); ++place) {
    Column& column = columns_[place];
    append(column, items[place].first == column.name ? items[place].second : example[column.name]);
  }
  ++count_;
}

Batch ExampleStack::finish() {
  LEVIN_CHECK(count_ == num_examples_, "fewer examples than announced");
  Batch batch;
  batch.items().reserve(columns_.size());
  for (auto& column : columns_)
    batch.items().emplace_back(std::move(column.name),
                               column.stacked.defined() ? std::move(column.stacked) : at::stack(column.held, 0));
  columns_.clear();
  batch.text_items() = std::move(texts_);
  texts_.clear();
  return batch;
}

}  // namespace levin::data
