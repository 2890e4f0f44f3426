#include <levin/core/data/blended_data.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/data/blend_stream.h>
#include <levin/core/data/concat_dataset.h>
#include <levin/core/data/mixed_dataset.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace levin::data {

void BlendedDataOptions::describe(Schema<BlendedDataOptions>& schema) {
  using O = BlendedDataOptions;
  schema.field("parts", &O::parts, "data modules by name, whose examples have the same tensors");
  schema.field("mix", &O::mix, "weight of each part, {a: 0.7, b: 0.3}; empty: numbers of examples");
  schema.field("temperature", &O::temperature, "weights to the power 1 / temperature: above 1 they differ less")
      .above(0);
  schema.field("at_end", &O::at_end,
               "behaviour of an exhausted part; repeat: begins again; leave: the others share its weight",
               {{"repeat", BlendEnd::kRepeat}, {"leave", BlendEnd::kLeave}});
  schema.field("examples", &O::examples, "examples in an epoch of parts that repeat; 0: those of all parts")
      .at_least(0);
  schema.field("batch_size", &O::batch_size, "examples in a batch of one rank")
      .at_least(1)
      .at_most(DataLoaderOptions::kMaxBatchSize);
  schema
      .field("global_batch_size", &O::global_batch_size,
             "examples in a batch of all ranks together; replaces batch_size")
      .at_least(1)
      .at_most(DataLoaderOptions::kMaxBatchSize);
  schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead; 0 fetches in the training thread")
      .at_least(0)
      .at_most(DataLoaderOptions::kMaxWorkers);
  schema.field("prefetch_factor", &O::prefetch_factor, "batches each worker keeps ready").at_least(1).at_most(10'000);
  schema.field("drop_last", &O::drop_last, "leave out the last training batch when it is not full");
  schema.field("pin_memory", &O::pin_memory, "page-locked batches for faster copies to a CUDA device");
  schema.field("timeout", &O::timeout, "longest time of a batch of the workers (s); 0: no limit")
      .at_least(0)
      .at_most(DataLoaderOptions::kMaxTimeout);
  schema.field("persistent_workers", &O::persistent_workers, "keep the workers from one epoch to the next");
  schema.field("on_error", &O::on_error, "for an unreadable example; raise: end the run; skip: take the next one",
               {{"raise", OnError::kRaise}, {"skip", OnError::kSkip}});
}

BlendedData::BlendedData(const Options& options) : DataParts(options.parts), options_(options) {
  std::vector<std::string> names;
  std::vector<double> weights;
  for (const auto& [name, weight] : options_.mix) {
    if (!options_.parts.contains(name))
      throw ConfigError(fmt::format("data.mix has a weight of '{}', which is not among data.parts", name));
    names.push_back(name);
    weights.push_back(weight);
  }
  if (options_.mix.empty()) return;
  for (const auto& [name, part] : options_.parts)
    if (!options_.mix.contains(name))
      throw ConfigError(fmt::format("data.mix has no weight of the part '{}'; hint: {}: 0 leaves it out", name, name));
  tempered_weights(names, weights, options_.temperature);
}

std::vector<double> BlendedData::weights(const std::vector<DataLoader::Part>& loaders) const {
  std::vector<std::string> names;
  std::vector<double> weights;
  for (const auto& [name, loader] : loaders) {
    names.push_back(name);
    if (const auto given = options_.mix.find(name); given != options_.mix.end()) {
      weights.push_back(given->second);
      continue;
    }
    const auto examples = loader.num_examples();
    if (!examples)
      throw ConfigError(
          fmt::format("the part '{}' has no size to weigh it by; hint: data.mix, {{{}: 1, ...}}", name, name));
    weights.push_back(static_cast<double>(*examples));
  }
  return tempered_weights(names, std::move(weights), options_.temperature);
}

DataLoader BlendedData::train_dataloader() {
  const std::vector<DataLoader::Part> loaders = training_loaders();
  const std::vector<double> weights = this->weights(loaders);
  const DataLoaderOptions loader{.batch_size = options_.batch_size,
                                 .num_workers = options_.num_workers,
                                 .prefetch_factor = options_.prefetch_factor,
                                 .pin_memory = options_.pin_memory,
                                 .drop_last = options_.drop_last,
                                 .global_batch_size = options_.global_batch_size,
                                 .timeout = options_.timeout,
                                 .persistent_workers = options_.persistent_workers,
                                 .on_error = options_.on_error};
  bool have_sizes = true;
  for (const auto& [name, part] : loaders) {
    if (!part.parts().empty())
      throw Error("data", fmt::format("the part '{}' of a blend is a combined loader, whose batches have parts", name));
    if (dynamic_cast<const MixedDataset*>(part.dataset().get()) != nullptr)
      throw Error("data", fmt::format("the part '{}' of a blend mixes the images of a batch; hint: leave out `mix` and "
                                      "label_smoothing of the part",
                                      name));
    have_sizes = have_sizes && part.dataset() != nullptr;
  }
  if (!have_sizes) {
    std::vector<BlendStream::Source> sources;
    for (size_t i = 0; i < loaders.size(); ++i)
      sources.push_back({.name = loaders[i].first, .weight = weights[i], .loader = loaders[i].second});
    return DataLoader(std::make_shared<BlendStream>(std::move(sources), options_.at_end, options_.examples), loader);
  }
  std::vector<BlendSource> sources;
  std::vector<std::shared_ptr<const Dataset>> datasets;
  for (size_t i = 0; i < loaders.size(); ++i) {
    const auto& [name, part] = loaders[i];
    sources.push_back({.name = name, .weight = weights[i], .size = part.dataset()->size(), .sampler = part.sampler()});
    datasets.push_back(part.dataset());
  }
  const auto sampler = std::make_shared<const BlendSampler>(std::move(sources), options_.at_end, options_.examples);
  std::string text = fmt::format("a blend of {} examples in an epoch:", sampler->length(0));
  for (size_t i = 0; i < loaders.size(); ++i)
    text += fmt::format("{} {} {} ({:.2f} of its epochs)", i == 0 ? "" : ",", loaders[i].first, sampler->counts()[i],
                        sampler->passes(1)[i]);
  log::rank_zero_info(text);
  return DataLoader(std::make_shared<ConcatDataset>(std::move(datasets)), loader, sampler);
}

}  // namespace levin::data
