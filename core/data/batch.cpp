#include <levin/core/data/batch.h>

#include <levin/core/base/detached_alias.h>
#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin {

namespace {

template <class Items>
std::string names_in(const Items& items) {
  std::vector<std::string> names;
  names.reserve(items.size());
  for (const auto& item : items) names.push_back(item.first);
  return names.empty() ? "none" : join(names);
}

/// The part of a nested name; empty where it is not nested.
std::string_view part_of(std::string_view name) {
  const size_t dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// Whether `full` is "name.x".
bool is_below(std::string_view full, std::string_view name) {
  return full.size() > name.size() && full.starts_with(name) && full[name.size()] == '.';
}

bool counts_examples(const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0; }

/// The batch with other tensors; texts stay.
template <class Function>
Batch transformed(const Batch& batch, const Function& function) {
  Batch result;
  result.items().reserve(batch.items().size());
  result.text_items() = batch.text_items();
  for (const auto& [name, tensor] : batch.items())
    result.items().emplace_back(name, tensor.defined() ? function(tensor) : tensor);
  return result;
}

bool sizes_agree(const Batch& batch) {
  const int64_t size = batch.size();
  for (const auto& [name, tensor] : batch.items())
    if (counts_examples(tensor) && tensor.size(0) != size) return false;
  return std::all_of(batch.text_items().begin(), batch.text_items().end(),
                     [size](const Batch::TextItem& item) { return std::ssize(item.second) == size; });
}

/// The batches whose names begin alike, in the order in which they are met.
std::vector<Batch> by_part(const Batch& batch) {
  std::vector<std::pair<std::string_view, Batch>> parts;
  const auto find = [&parts](std::string_view name) -> Batch& {
    auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& known) { return known.first == name; });
    if (part == parts.end()) part = parts.insert(parts.end(), {name, Batch()});
    return part->second;
  };
  for (const auto& item : batch.items()) find(part_of(item.first)).items().push_back(item);
  for (const auto& item : batch.text_items()) find(part_of(item.first)).text_items().push_back(item);
  std::vector<Batch> batches;
  for (auto& part : parts) batches.push_back(std::move(part.second));
  return batches;
}

/// Throws unless the first dimensions of all tensors agree.
void check_sizes(const Batch& batch) {
  const int64_t size = batch.size();
  const std::string* first = nullptr;
  for (const auto& [name, tensor] : batch.items()) {
    if (!counts_examples(tensor)) continue;
    if (first == nullptr) first = &name;
    if (tensor.size(0) != size)
      throw Error("data", fmt::format("the tensors of a batch disagree on the number of examples: '{}' has {}, '{}' {}",
                                      name, tensor.size(0), *first, size));
  }
  for (const auto& [name, texts] : batch.text_items()) {
    if (std::ssize(texts) != size)
      throw Error("data", fmt::format("a batch of {} has {} texts '{}'; valid: one for each example",
                                      counted(size, "example"), texts.size(), name));
  }
}

/// Splits each part of nested names for itself, all into as many slices.
std::vector<Batch> split_by_part(const Batch& batch, int64_t count) {
  const auto has_examples = [](const Batch& part) {
    return !part.text_items().empty() ||
           std::any_of(part.items().begin(), part.items().end(),
                       [](const Batch::Item& item) { return counts_examples(item.second); });
  };
  const std::vector<Batch> parts = by_part(batch);
  for (const Batch& part : parts) {
    check_sizes(part);
    if (has_examples(part)) count = std::min(count, std::max<int64_t>(part.size(), 1));
  }
  std::vector<Batch> slices(static_cast<size_t>(count));
  for (const Batch& part : parts) {
    const auto of_part = has_examples(part) ? part.split(count) : std::vector<Batch>(slices.size(), part);
    for (size_t i = 0; i < slices.size(); ++i) {
      for (const Batch::Item& item : of_part[i].items()) slices[i].items().push_back(item);
      for (const Batch::TextItem& item : of_part[i].text_items()) slices[i].text_items().push_back(item);
    }
  }
  return slices;
}

}  // namespace

Batch::Batch(std::initializer_list<Item> items) : items_(items) {
  for (size_t i = 1; i < items_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (items_[i].first == items_[j].first)
        throw Error("data", fmt::format("a batch has two tensors named '{}'", items_[i].first));
    }
  }
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  const at::Tensor* tensor = find(name);
  if (tensor == nullptr)
    throw Error("data", fmt::format("the batch has no tensor '{}'; it has: {}", name, names_in(items_)));
  return *tensor;
}

at::Tensor& Batch::operator[](std::string_view name) {
  for (auto& item : items_)
    if (item.first == name) return item.second;
  return items_.emplace_back(std::string(name), at::Tensor()).second;
}

const at::Tensor* Batch::find(std::string_view name) const {
  for (const auto& item : items_)
    if (item.first == name) return &item.second;
  return nullptr;
}

void Batch::set(std::string_view name, at::Tensor tensor) { (*this)[name] = std::move(tensor); }

const std::vector<std::string>& Batch::texts(std::string_view name) const {
  const auto* texts = find_texts(name);
  if (texts == nullptr)
    throw Error("data", fmt::format("the batch has no texts '{}'; it has: {}", name, names_in(texts_)));
  return *texts;
}

const std::vector<std::string>* Batch::find_texts(std::string_view name) const {
  for (const auto& item : texts_) {
    if (item.first != name) continue;
    refuse_while_recording(fmt::format("reading the texts '{}' of the batch", name),
                           "read them in on_train_batch_start or on_train_batch_end");
    return &item.second;
  }
  return nullptr;
}

void Batch::set_texts(std::string_view name, std::vector<std::string> texts) {
  for (auto& item : texts_) {
    if (item.first != name) continue;
    item.second = std::move(texts);
    return;
  }
  texts_.emplace_back(std::string(name), std::move(texts));
}

Batch Batch::part(std::string_view name) const {
  Batch part;
  for (const auto& [full, tensor] : items_)
    if (is_below(full, name)) part.items_.emplace_back(full.substr(name.size() + 1), tensor);
  for (const auto& [full, texts] : texts_)
    if (is_below(full, name)) part.texts_.emplace_back(full.substr(name.size() + 1), texts);
  return part;
}

void Batch::set_part(std::string_view name, const Batch& part) {
  const auto was_there = [name](const auto& item) { return is_below(item.first, name); };
  std::erase_if(items_, was_there);
  std::erase_if(texts_, was_there);
  for (const auto& [rest, tensor] : part.items_) items_.emplace_back(fmt::format("{}.{}", name, rest), tensor);
  for (const auto& [rest, texts] : part.texts_) texts_.emplace_back(fmt::format("{}.{}", name, rest), texts);
}

int64_t Batch::size() const {
  for (const auto& item : items_)
    if (counts_examples(item.second)) return item.second.size(0);
  if (!texts_.empty()) return std::ssize(texts_.front().second);
  return items_.empty() ? 0 : 1;
}

Batch Batch::to(const at::Device& device, bool non_blocking) const {
  return transformed(*this, [&](const at::Tensor& tensor) {
    return tensor.device() == device ? tensor : tensor.to(device, tensor.scalar_type(), non_blocking);
  });
}

Batch Batch::to_floating(at::ScalarType type) const {
  return transformed(*this, [&](const at::Tensor& tensor) {
    return tensor.is_floating_point() && tensor.scalar_type() != type ? tensor.to(type) : tensor;
  });
}

Batch Batch::pin_memory() const {
  return transformed(*this, [](const at::Tensor& tensor) { return tensor.is_cpu() ? tensor.pin_memory() : tensor; });
}

Batch Batch::slice(int64_t begin, int64_t end) const {
  if (begin < 0 || end < begin || end > size())
    throw Error("data", fmt::format("cannot slice examples [{}, {}) out of a batch of {}", begin, end, size()));
  check_sizes(*this);
  Batch result = transformed(
      *this, [&](const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor : tensor.slice(0, begin, end); });
  for (auto& [name, texts] : result.texts_) texts = {texts.begin() + begin, texts.begin() + end};
  return result;
}

std::vector<Batch> Batch::split(int64_t parts) const {
  if (parts < 1) throw Error("data", fmt::format("cannot split a batch into {} parts; valid: at least 1", parts));
  if (empty()) return {};
  if (parts == 1) return {*this};
  const int64_t examples = size();
  if (!sizes_agree(*this)) return split_by_part(*this, parts);
  const int64_t count = std::clamp<int64_t>(examples, 1, parts);
  std::vector<Batch> result;
  result.reserve(static_cast<size_t>(count));
  int64_t begin = 0;
  for (int64_t part = 0; part < count; ++part) {
    const int64_t end = begin + examples / count + (part < examples % count ? 1 : 0);
    result.push_back(slice(begin, end));
    // What is done to one in place is no change of the others, whose memory is another.
    for (auto& [name, tensor] : result.back().items())
      if (counts_examples(tensor) && !tensor.requires_grad() && !tensor.is_inference()) tensor = detached_alias(tensor);
    begin = end;
  }
  return result;
}

Batch Batch::concatenate(const std::vector<Batch>& parts) {
  if (parts.empty()) return {};
  if (parts.size() == 1) return parts.front();
  Batch result;
  for (const auto& [name, first] : parts.front().items_) {
    if (!counts_examples(first)) {
      result.items_.emplace_back(name, first);
      continue;
    }
    std::vector<at::Tensor> pieces;
    pieces.reserve(parts.size());
    for (const auto& part : parts) pieces.push_back(part[name]);
    result.items_.emplace_back(name, at::cat(pieces, 0));
  }
  for (const auto& [name, first] : parts.front().texts_) {
    std::vector<std::string> all;
    for (const auto& part : parts) {
      const auto& texts = part.texts(name);
      all.insert(all.end(), texts.begin(), texts.end());
    }
    result.texts_.emplace_back(name, std::move(all));
  }
  return result;
}

}  // namespace levin
