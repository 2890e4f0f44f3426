#include <levin/core/data/sampling.h>

#include <levin/core/base/error.h>
#include <levin/core/data/length_grouped_sampler.h>
#include <levin/core/data/read_column.h>
#include <levin/core/data/token_batch_sampler.h>
#include <levin/core/data/weighted_random_sampler.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

namespace {

template <class T>
std::vector<T> values_of(const at::Tensor& column, at::ScalarType type) {
  const at::Tensor values = column.to(at::kCPU, type).contiguous();
  const auto* begin = values.const_data_ptr<T>();
  return {begin, begin + values.numel()};
}

std::vector<int64_t> lengths_of(const SampledExamples& examples, const std::string& name, const std::string& sampler) {
  return values_of<int64_t>(examples.require_column(name, sampler), at::kLong);
}

std::vector<int64_t> labels_of(const SampledExamples& examples, const std::string& name, const std::string& sampler) {
  return to_labels(examples.require_column(name, sampler), name);
}

}  // namespace

at::Tensor SampledExamples::require_column(const std::string& name, const std::string& sampler) const {
  at::Tensor values = column ? column(name) : at::Tensor();
  if (!values.defined())
    throw Error("data", fmt::format("sampler '{}' needs '{}' of each training example, which the data module does not "
                                    "know; hint: name a tensor that its batches have",
                                    sampler, name));
  if (values.dim() != 1 || values.size(0) != size)
    throw Error("data", fmt::format("sampler '{}' needs one number '{}' of each of {}; got {}", sampler, name,
                                    counted(size, "training example"), c10::str(values.sizes())));
  return values;
}

void WeightedSamplingOptions::describe(Schema<WeightedSamplingOptions>& schema) {
  using O = WeightedSamplingOptions;
  schema.field("weights", &O::weights, "the tensor that has each example's weight");
  schema.field("class_weights", &O::class_weights, "weights of the classes, in their order, in place of weights");
  schema.field("label", &O::label, "the tensor that has each example's class, for class_weights");
  schema.field("num_samples", &O::num_samples, "examples drawn in an epoch; null: as many as there are").at_least(1);
  schema.field("replacement", &O::replacement, "draw with replacement");
}

std::shared_ptr<const Sampler> WeightedSampling::sampler(const SampledExamples& examples) const {
  const char* const name = "weighted";
  std::vector<double> weights;
  if (options_.class_weights) {
    weights = class_weights(labels_of(examples, options_.label, name), *options_.class_weights);
  } else {
    weights = values_of<double>(examples.require_column(options_.weights, name), at::kDouble);
  }
  return std::make_shared<WeightedRandomSampler>(
      std::move(weights),
      WeightedRandomSamplerOptions{.num_samples = options_.num_samples, .replacement = options_.replacement});
}

void ClassBalancedSamplingOptions::describe(Schema<ClassBalancedSamplingOptions>& schema) {
  using O = ClassBalancedSamplingOptions;
  schema.field("label", &O::label, "the tensor that has each example's class");
  schema.field("num_samples", &O::num_samples, "examples drawn in an epoch; null: as many as there are").at_least(1);
}

std::shared_ptr<const Sampler> ClassBalancedSampling::sampler(const SampledExamples& examples) const {
  return std::make_shared<WeightedRandomSampler>(
      class_balanced_weights(labels_of(examples, options_.label, "class_balanced")),
      WeightedRandomSamplerOptions{.num_samples = options_.num_samples});
}

void LengthGroupedSamplingOptions::describe(Schema<LengthGroupedSamplingOptions>& schema) {
  using O = LengthGroupedSamplingOptions;
  schema.field("lengths", &O::lengths, "the tensor that has each example's length");
  schema.field("window", &O::window, "batches that are drawn and sorted by length together").at_least(1);
}

std::shared_ptr<const Sampler> LengthGroupedSampling::sampler(const SampledExamples& examples) const {
  return std::make_shared<LengthGroupedSampler>(
      lengths_of(examples, options_.lengths, "length_grouped"),
      LengthGroupedSamplerOptions{.group_size = examples.batch_size, .window = options_.window});
}

void TokenBatchSamplingOptions::describe(Schema<TokenBatchSamplingOptions>& schema) {
  using O = TokenBatchSamplingOptions;
  schema.field("max_tokens", &O::max_tokens,
               "tokens in a training batch of all ranks, padding included; replaces batch_size");
  schema.field("num_buckets", &O::num_buckets, "groups of similar length that batches are drawn from, at most")
      .at_least(1);
  schema.field("lengths", &O::lengths, "the tensor that has each example's length");
}

TokenBatchSampling::TokenBatchSampling(const Options& options) : options_(options) {
  if (options_.max_tokens < 1)
    throw ConfigError(
        fmt::format("max_tokens of the sampler token_batches is {}; valid: at least 1; hint: as many as "
                    "a batch of all ranks may have",
                    options_.max_tokens));
}

std::shared_ptr<const Sampler> TokenBatchSampling::sampler(const SampledExamples& examples) const {
  return std::make_shared<TokenBatchSampler>(
      lengths_of(examples, options_.lengths, "token_batches"),
      TokenBatchSamplerOptions{.max_tokens = options_.max_tokens, .num_buckets = options_.num_buckets});
}

Registry<Sampling>& sampling_registry() {
  static Registry<Sampling>* instance = [] {
    auto* made = new Registry<Sampling>("sampler");  // outlives every static object that may still use it
    made->add<WeightedSampling>("weighted", "draws each example as often as its weight says");
    made->add<ClassBalancedSampling>("class_balanced", "draws every class as often as every other one");
    made->add<LengthGroupedSampling>("length_grouped", "a shuffled order whose batches have examples of like length");
    made->add<TokenBatchSampling>("token_batches", "batches of as many tokens, of examples of like length");
    return made;
  }();
  return *instance;
}

std::shared_ptr<const Sampling> make_sampling(const std::optional<Spec<Sampling>>& spec, const std::string& path) {
  return spec ? spec->resolve(sampling_registry(), path) : nullptr;
}

DataLoader sampled_loader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options, const Sampling* sampling,
                          std::function<at::Tensor(const std::string& name)> column) {
  if (sampling == nullptr) return DataLoader(std::move(dataset), options);
  const auto sampler = sampling->sampler({.size = dataset->size(),
                                          .batch_size = options.global_batch_size.value_or(options.batch_size),
                                          .column = std::move(column)});
  options.shuffle = false;
  if (dynamic_cast<const BatchSampler*>(sampler.get()) != nullptr) {
    if (options.drop_last)
      throw ConfigError(
          "data.drop_last leaves out a last batch that is not full, which the batches of data.sampler do not have; "
          "hint: leave it out");
    options.batch_size = DataLoaderOptions().batch_size;
    options.global_batch_size.reset();
  }
  return DataLoader(std::move(dataset), options, sampler);
}

}  // namespace levin::data
