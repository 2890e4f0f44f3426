#include <levin/core/data/pad_collate.h>

#include <levin/core/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

namespace {

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::str(tensor.sizes()), c10::toString(tensor.scalar_type()));
}

class PadCollate {
 public:
  explicit PadCollate(const PadCollateOptions& options) : options_(options) {}

  Batch operator()(std::span<const Batch> examples) const {
    if (examples.empty()) return {};
    for (const std::string& name : options_.fields) (void)examples.front()[name];  // one that is missing is an error
    Batch padded;
    std::vector<Batch> others(examples.size());
    for (const auto& [name, first] : examples.front().items()) {
      if (is_padded(name, first)) {
        pad(name, examples, padded);
        continue;
      }
      for (size_t i = 0; i < examples.size(); ++i) others[i].set(name, examples[i][name]);
    }
    for (size_t i = 0; i < examples.size(); ++i) {
      others[i].text_items() = examples[i].text_items();
      require_same_tensors(examples, i);
    }
    const bool has_others =
        !std::all_of(others.begin(), others.end(), [](const Batch& other) { return other.empty(); });
    const Batch stacked = has_others ? stack_examples(others) : Batch();
    // In the order of the examples' tensors, what belongs to one behind it.
    Batch batch;
    for (const auto& [name, first] : examples.front().items()) {
      if (const at::Tensor* tensor = stacked.find(name)) {
        add(batch, name, *tensor);
        continue;
      }
      for (const std::string& part : {name, name + "_length", name + "_mask"})
        add(batch, part, std::as_const(padded)[part]);
    }
    batch.text_items() = stacked.text_items();
    return batch;
  }

 private:
  bool is_padded(const std::string& name, const at::Tensor& first) const {
    if (!options_.fields.empty())
      return std::find(options_.fields.begin(), options_.fields.end(), name) != options_.fields.end();
    return first.dim() == 1 || first.dim() == 2;
  }

  /// A tensor that the first example lacks would be lost.
  static void require_same_tensors(std::span<const Batch> examples, size_t i) {
    for (const auto& [name, tensor] : examples[i].items())
      if (examples.front().find(name) == nullptr)
        throw Error("data", fmt::format("cannot pad the examples of a batch: example {} has a tensor '{}', which "
                                        "example 0 lacks",
                                        i, name));
  }

  static void add(Batch& batch, const std::string& name, const at::Tensor& tensor) {
    if (batch.find(name) != nullptr)
      throw Error("data", fmt::format("pad_collate adds the tensor '{}', which the examples have too; hint: give "
                                      "theirs another name, or leave the other one out of `fields`",
                                      name));
    batch.set(name, tensor);
  }

  void pad(const std::string& name, std::span<const Batch> examples, Batch& padded) const {
    const at::Tensor& first = examples.front()[name];
    if (first.dim() != 1 && first.dim() != 2)
      throw Error("data", fmt::format("'{}' of an example cannot be padded; got {}; valid: [length] or [length, "
                                      "features]",
                                      name, described(first)));
    std::vector<int64_t> lengths;
    lengths.reserve(examples.size());
    for (size_t i = 0; i < examples.size(); ++i) {
      const at::Tensor& tensor = examples[i][name];
      if (tensor.dim() != first.dim() || tensor.scalar_type() != first.scalar_type() ||
          tensor.sizes().slice(1) != first.sizes().slice(1))
        throw Error("data", fmt::format("cannot pad the examples of a batch: '{}' is {} in example 0 and {} in example "
                                        "{}; valid: tensors that differ in their first dimension alone",
                                        name, described(first), described(tensor), i));
      lengths.push_back(tensor.size(0));
    }
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const int64_t width = (longest + options_.multiple_of - 1) / options_.multiple_of * options_.multiple_of;
    const auto value = options_.padding_value.find(name);
    std::vector<int64_t> shape{std::ssize(lengths), width};
    if (first.dim() == 2) shape.push_back(first.size(1));
    at::Tensor values = at::full(shape, value == options_.padding_value.end() ? 0 : value->second, first.options());
    for (size_t i = 0; i < examples.size(); ++i)
      values.select(0, static_cast<int64_t>(i)).slice(0, 0, lengths[i]).copy_(examples[i][name]);
    const at::Tensor length = at::tensor(lengths, at::kLong);
    padded.set(name, values);
    padded.set(name + "_length", length);
    padded.set(name + "_mask", at::arange(width, at::kLong).unsqueeze(0).lt(length.unsqueeze(1)));
  }

  PadCollateOptions options_;
};

}  // namespace

CollateFunction pad_collate(const PadCollateOptions& options) {
  if (options.multiple_of < 1)
    throw Error("data", fmt::format("pad_collate pads to a multiple of {}; valid: at least 1", options.multiple_of));
  if (!options.fields.empty())
    for (const auto& [name, value] : options.padding_value)
      if (std::find(options.fields.begin(), options.fields.end(), name) == options.fields.end())
        throw Error("data", fmt::format("pad_collate has a padding value for '{}', which it does not pad{}", name,
                                        valid_names_hint(name, options.fields)));
  return PadCollate(options);
}

}  // namespace levin::data
