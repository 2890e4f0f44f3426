#include <levin/core/data/transforms/sequence_transforms.h>

#include <levin/core/base/error.h>
#include <levin/core/data/transforms/transform_options.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <vector>

namespace levin::data {

namespace {

constexpr int64_t kMostLength = int64_t{1} << 31;

const at::Tensor& sequence(const Batch& example, const std::string& name, const char* transform) {
  const at::Tensor* tensor = example.find(name);
  if (tensor != nullptr && tensor->dim() > 0) return *tensor;
  throw Error("data", fmt::format("{} needs a tensor '{}' that is a sequence; got {}", transform, name,
                                  tensor == nullptr ? "none" : "one without dimensions"));
}

}  // namespace

void TruncateOptions::describe(Schema<TruncateOptions>& schema) {
  using O = TruncateOptions;
  schema.field("tensor", &O::tensor, "name of the sequence");
  schema.field("max_length", &O::max_length, "length of the truncated sequence at most")
      .at_least(1)
      .at_most(kMostLength);
}

Truncate::Truncate(const Options& options) : options_(checked(options, "truncate")) {}

void Truncate::apply(Batch& example, Generator& /*generator*/) const {
  const at::Tensor& whole = sequence(example, options_.tensor, "truncate");
  if (whole.size(0) > options_.max_length) example.set(options_.tensor, whole.narrow(0, 0, options_.max_length));
}

void PadSequenceOptions::describe(Schema<PadSequenceOptions>& schema) {
  using O = PadSequenceOptions;
  schema.field("tensor", &O::tensor, "name of the sequence");
  schema.field("length", &O::length, "length of the padded sequence at least").at_least(1).at_most(kMostLength);
  schema.field("value", &O::value, "value of the padding");
}

PadSequence::PadSequence(const Options& options) : options_(checked(options, "pad_sequence")) {}

void PadSequence::apply(Batch& example, Generator& /*generator*/) const {
  const at::Tensor& given = sequence(example, options_.tensor, "pad_sequence");
  if (given.size(0) >= options_.length) return;
  std::vector<int64_t> shape = given.sizes().vec();
  shape[0] = options_.length - given.size(0);
  example.set(options_.tensor, at::cat({given, at::full(shape, options_.value, given.options())}));
}

}  // namespace levin::data
