#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

/// An ordered list of named tensors that a data set yields and a step receives. The first dimension of each tensor
/// counts the examples, except for tensors without dimensions. The trainer moves, pins, splits and slices it.
///
/// Names with a dot are nested: "a.x" is the tensor "x" of the part "a". Parts may have different numbers of examples.
///
/// Beside tensors it has texts, such as names of files: one for each example. They stay on the host.
class Batch {
 public:
  using Item = std::pair<std::string, at::Tensor>;
  using TextItem = std::pair<std::string, std::vector<std::string>>;

  Batch() = default;
  Batch(std::initializer_list<Item> items);

  /// Returns the tensor of that name. Throws levin::Error naming the tensors there are.
  const at::Tensor& operator[](std::string_view name) const;
  /// Returns the tensor of that name; adds an undefined one where there is none.
  at::Tensor& operator[](std::string_view name);
  const at::Tensor* find(std::string_view name) const;

  void set(std::string_view name, at::Tensor tensor);

  /// Returns the texts of that name, one for each example. Throws levin::Error naming the texts there are.
  const std::vector<std::string>& texts(std::string_view name) const;
  const std::vector<std::string>* find_texts(std::string_view name) const;
  /// Puts texts in, one for each example; an example by itself has one.
  void set_texts(std::string_view name, std::vector<std::string> texts);
  const std::vector<TextItem>& text_items() const { return texts_; }
  std::vector<TextItem>& text_items() { return texts_; }

  /// Returns the tensors and texts below a name, under the rest of theirs: of "a" those that are named "a.x"; none
  /// where there is no such part.
  Batch part(std::string_view name) const;
  /// Puts the tensors and texts of a batch below a name, in place of those that were there.
  void set_part(std::string_view name, const Batch& part);
  bool empty() const { return items_.empty() && texts_.empty(); }
  const std::vector<Item>& items() const { return items_; }
  std::vector<Item>& items() { return items_; }

  /// Returns the number of examples: the first dimension of the first tensor that has one, else the number of the first
  /// texts; 1 when there are neither, 0 when empty.
  int64_t size() const;

  Batch to(const at::Device& device, bool non_blocking = false) const;
  /// Returns the batch with floating-point tensors in another type; integers stay.
  Batch to_floating(at::ScalarType type) const;
  Batch pin_memory() const;
  /// Returns the examples [begin, end).
  Batch slice(int64_t begin, int64_t end) const;
  /// Splits into at most `parts` slices of sizes that differ by at most one; fewer when there are fewer examples. Where
  /// the parts of nested names differ in their numbers of examples, each is split for itself.
  std::vector<Batch> split(int64_t parts) const;
  /// Concatenates tensors and texts by name along the first dimension: the inverse of split.
  static Batch concatenate(const std::vector<Batch>& parts);

 private:
  std::vector<Item> items_;
  std::vector<TextItem> texts_;
};

}  // namespace levin
