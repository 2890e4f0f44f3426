#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/sampler.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// What is known of training examples before they are read.
struct SampledExamples {
  int64_t size = 0;
  /// Examples in a batch of all ranks together where global_batch_size says it, else of one rank.
  int64_t batch_size = 1;
  /// Returns one number of each example, [size], by its name: "label", "length", "weight"; an undefined tensor where
  /// the data module does not know it.
  std::function<at::Tensor(const std::string& name)> column = {};

  /// Returns column(name). Throws levin::Error where it is not known; `sampler`: what asks for it.
  at::Tensor require_column(const std::string& name, const std::string& sampler) const;
};

/// How training examples are drawn, as users name it: `data: {sampler: class_balanced}`. It takes the place of
/// `shuffle`, and a BatchSampler that of `batch_size`.
class Sampling : public Configurable {
 public:
  /// Makes the sampler for these examples. Throws levin::Error where they lack what it needs.
  virtual std::shared_ptr<const Sampler> sampler(const SampledExamples& examples) const = 0;
};

/// Options of WeightedSampling, explained in describe().
struct WeightedSamplingOptions {
  std::string weights = "weight";
  std::optional<std::vector<double>> class_weights = {};
  std::string label = "label";
  std::optional<int64_t> num_samples = {};
  bool replacement = true;

  static void describe(Schema<WeightedSamplingOptions>& schema);
};

/// A WeightedRandomSampler.
class WeightedSampling : public Sampling {
 public:
  using Options = WeightedSamplingOptions;
  explicit WeightedSampling(const Options& options) : options_(options) {}
  std::shared_ptr<const Sampler> sampler(const SampledExamples& examples) const override;

 private:
  Options options_;
};

/// Options of ClassBalancedSampling, explained in describe().
struct ClassBalancedSamplingOptions {
  std::string label = "label";
  std::optional<int64_t> num_samples = {};

  static void describe(Schema<ClassBalancedSamplingOptions>& schema);
};

/// A WeightedRandomSampler with class_balanced_weights, with replacement.
class ClassBalancedSampling : public Sampling {
 public:
  using Options = ClassBalancedSamplingOptions;
  explicit ClassBalancedSampling(const Options& options) : options_(options) {}
  std::shared_ptr<const Sampler> sampler(const SampledExamples& examples) const override;

 private:
  Options options_;
};

/// Options of LengthGroupedSampling, explained in describe().
struct LengthGroupedSamplingOptions {
  std::string lengths = "length";
  int64_t window = 50;

  static void describe(Schema<LengthGroupedSamplingOptions>& schema);
};

/// A LengthGroupedSampler.
class LengthGroupedSampling : public Sampling {
 public:
  using Options = LengthGroupedSamplingOptions;
  explicit LengthGroupedSampling(const Options& options) : options_(options) {}
  std::shared_ptr<const Sampler> sampler(const SampledExamples& examples) const override;

 private:
  Options options_;
};

/// Options of TokenBatchSampling, explained in describe().
struct TokenBatchSamplingOptions {
  int64_t max_tokens = 0;
  int64_t num_buckets = 30;
  std::string lengths = "length";

  static void describe(Schema<TokenBatchSamplingOptions>& schema);
};

/// A TokenBatchSampler.
class TokenBatchSampling : public Sampling {
 public:
  using Options = TokenBatchSamplingOptions;
  explicit TokenBatchSampling(const Options& options);
  std::shared_ptr<const Sampler> sampler(const SampledExamples& examples) const override;

 private:
  Options options_;
};

/// Names that `sampler` may use in YAML, and a program's own.
Registry<Sampling>& sampling_registry();

/// Makes the sampling of a data module's option; nullptr where there is none. Throws ConfigError naming the place.
std::shared_ptr<const Sampling> make_sampling(const std::optional<Spec<Sampling>>& spec,
                                              const std::string& path = "data.sampler");

/// Returns the loader that trains: in the order of `sampling`, or where that is nullptr as options.shuffle says.
/// `column`: see SampledExamples. Throws ConfigError for options that a BatchSampler leaves no room for.
DataLoader sampled_loader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options, const Sampling* sampling,
                          std::function<at::Tensor(const std::string& name)> column);

/// Describes the field `sampler` of a data module's options.
template <class Options>
void describe_sampler_field(Schema<Options>& schema) {
  schema.field("sampler", &Options::sampler,
               "sampler of training examples (weighted, class_balanced, length_grouped, token_batches), replaces "
               "shuffle; null: none");
}

}  // namespace levin::data
