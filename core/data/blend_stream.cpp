#include <levin/core/data/blend_stream.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/generator.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <optional>
#include <utility>

namespace levin::data {

namespace {

/// Tells the draws of a blend's readers from other streams.
constexpr uint64_t kBlendReaders = 0x6c65'7669'6e5f'6272;
/// Epochs that a source may have in one of the blend's.
constexpr int64_t kMostRepeats = int64_t{1} << 20;

/// The only example of a batch.
Batch example_of(const Batch& batch) {
  Batch example = batch;
  for (auto& [name, tensor] : example.items())
    if (tensor.dim() > 0) tensor = tensor.select(0, 0);
  return example;
}

class BlendedExamples : public ExampleStream {
 public:
  BlendedExamples(const std::vector<BlendStream::Source>& sources, BlendEnd end, std::optional<int64_t> examples,
                  const StreamContext& context)
      : sources_(sources),
        end_(end),
        left_(examples),
        context_(context),
        random_(context.seed ^ kBlendReaders, context.epoch, context.reader),
        open_(sources.size()) {}

  std::optional<Batch> next() override {
    while (left_ != 0) {
      const auto source = draw();
      if (!source) return std::nullopt;
      auto example = next_of(*source);
      if (!example) {
        open_[*source].has_left = true;
        continue;
      }
      if (left_) --*left_;
      return example;
    }
    return std::nullopt;
  }

 private:
  struct Open {
    std::optional<DataLoader::Pass> pass = {};
    int64_t repeats = 0;
    bool has_left = false;
  };

  /// The source of the next example, by weight among those that are there; nothing where none is.
  std::optional<size_t> draw() {
    double sum = 0;
    for (size_t i = 0; i < sources_.size(); ++i) sum += open_[i].has_left ? 0 : sources_[i].weight;
    if (sum == 0) return std::nullopt;
    double place = random_.uniform() * sum;
    size_t last = 0;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (open_[i].has_left || sources_[i].weight == 0) continue;
      last = i;
      if (place < sources_[i].weight) break;
      place -= sources_[i].weight;
    }
    return last;
  }

  std::optional<Batch> next_of(size_t place) {
    Open& open = open_[place];
    if (!open.pass) open.pass = begin(place, open.repeats);
    if (const auto batch = open.pass->next()) return example_of(*batch);
    if (end_ == BlendEnd::kLeave || open.repeats + 1 == kMostRepeats) return std::nullopt;
    open.pass = begin(place, ++open.repeats);
    const auto batch = open.pass->next();  // nothing: it has none for this reader
    return batch ? std::optional(example_of(*batch)) : std::nullopt;
  }

  DataLoader::Pass begin(size_t place, int64_t repeats) const {
    const BlendStream::Source& source = sources_[place];
    DataLoaderOptions options = source.loader.options();
    options.batch_size = 1;
    options.global_batch_size.reset();
    options.drop_last = false;
    options.num_workers = 0;
    options.timeout = 0;
    options.pin_memory = false;
    return source.loader.with_options(options).pass(
        {.seed = mix_seed(context_.seed, XXH3_64bits(source.name.data(), source.name.size())),
         .epoch = context_.epoch * kMostRepeats + repeats,
         .rank = context_.reader,
         .world_size = context_.num_readers});
  }

  std::vector<BlendStream::Source> sources_;
  BlendEnd end_;
  std::optional<int64_t> left_;  ///< examples of this reader
  StreamContext context_;
  Generator random_;
  std::vector<Open> open_;
};

}  // namespace

BlendStream::BlendStream(std::vector<Source> sources, BlendEnd end, int64_t examples)
    : sources_(std::move(sources)), end_(end), examples_(examples) {
  std::vector<std::string> names;
  std::vector<double> weights;
  for (const Source& source : sources_) {
    names.push_back(source.name);
    weights.push_back(source.weight);
  }
  tempered_weights(names, weights, 1);
  if (end_ == BlendEnd::kRepeat && examples_ == 0)
    throw Error("data",
                "a blend of data without a size, which repeats, has no end; hint: `examples`, those of an epoch, "
                "or at_end: leave");
}

std::unique_ptr<ExampleStream> BlendStream::stream(const StreamContext& context) const {
  std::optional<int64_t> own;
  if (examples_ > 0) own = examples_ / context.num_readers + (context.reader < examples_ % context.num_readers ? 1 : 0);
  return std::make_unique<BlendedExamples>(sources_, end_, own, context);
}

CollateFunction BlendStream::collate() const {
  for (const Source& source : sources_)
    if (source.loader.dataset() != nullptr) return source.loader.dataset()->collate();
  return nullptr;
}

std::string BlendStream::order() const {
  std::string text = end_ == BlendEnd::kRepeat ? "blend of" : "blend, whose sources leave, of";
  for (size_t i = 0; i < sources_.size(); ++i)
    text += fmt::format("{} {} {}", i == 0 ? "" : ",", sources_[i].name, sources_[i].weight);
  return text + fmt::format(", {} examples", examples_);
}

}  // namespace levin::data
