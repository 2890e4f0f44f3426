#include <levin/core/data/token_text.h>

#include <levin/core/base/error.h>
#include <levin/core/data/loader_fields.h>
#include <levin/core/data/mapped_file.h>
#include <levin/core/data/read_column.h>
#include <levin/core/data/subset.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

void check_row(int64_t row, int64_t size) {
  if (row < 0 || row >= size) throw Error("data", fmt::format("there is no example {}; the text has {}", row, size));
}

/// Runs a function whose errors are then led by a place.
template <class Function>
auto with_place(const std::string& place, const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    std::string_view message = error.what();
    constexpr std::string_view kComponent = "[data] ";
    if (message.starts_with(kComponent)) message.remove_prefix(kComponent.size());
    throw Error("data", fmt::format("{}: {}", place, message));
  }
}

class TokenBlocks : public Dataset {
 public:
  TokenBlocks(std::vector<int32_t> tokens, int64_t length) : tokens_(std::move(tokens)), length_(length) {}
  int64_t size() const override { return std::max<int64_t>(std::ssize(tokens_) - 1, 0) / length_; }

  Batch get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const override {
    const auto count = static_cast<int64_t>(indices.size());
    at::Tensor tokens = at::empty({count, length_}, at::kLong);
    at::Tensor next = at::empty({count, length_}, at::kLong);
    for (int64_t row = 0; row < count; ++row) {
      check_row(indices[static_cast<size_t>(row)], size());
      const int32_t* block = tokens_.data() + indices[static_cast<size_t>(row)] * length_;
      std::copy(block, block + length_, tokens.mutable_data_ptr<int64_t>() + row * length_);
      std::copy(block + 1, block + 1 + length_, next.mutable_data_ptr<int64_t>() + row * length_);
    }
    return {{"tokens", std::move(tokens)}, {"next", std::move(next)}};
  }

 private:
  std::vector<int32_t> tokens_;
  int64_t length_;
};

class TokenLines : public Dataset {
 public:
  TokenLines(std::vector<std::vector<int32_t>> lines, const TokenTextOptions& options)
      : lines_(std::move(lines)), length_(options.length), padding_(options.padding), pad_to_(options.pad_to) {}
  int64_t size() const override { return std::ssize(lines_); }

  Batch get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const override {
    const auto count = static_cast<int64_t>(indices.size());
    at::Tensor lengths = at::empty({count}, at::kLong);
    auto* const length = lengths.mutable_data_ptr<int64_t>();
    int64_t width = pad_to_ == TextPadding::kLength ? length_ : 1;
    for (int64_t row = 0; row < count; ++row) {
      check_row(indices[static_cast<size_t>(row)], size());
      length[row] = std::ssize(lines_[static_cast<size_t>(indices[static_cast<size_t>(row)])]);
      width = std::max(width, length[row]);
    }
    at::Tensor text = at::full({count, width}, padding_, at::kLong);
    for (int64_t row = 0; row < count; ++row) {
      const auto& line = lines_[static_cast<size_t>(indices[static_cast<size_t>(row)])];
      std::copy(line.begin(), line.end(), text.mutable_data_ptr<int64_t>() + row * width);
    }
    return {{"text", std::move(text)}, {"length", std::move(lengths)}};
  }

 private:
  std::vector<std::vector<int32_t>> lines_;  ///< cut to the length
  int64_t length_;
  int64_t padding_;
  TextPadding pad_to_;
};

}  // namespace

void TokenTextOptions::describe(Schema<TokenTextOptions>& schema) {
  using O = TokenTextOptions;
  schema.field("path", &O::path, "a UTF-8 text file for training");
  schema.field("val_path", &O::val_path, "file of validation text; null: val_fraction of the training text, its end");
  schema.field("test_path", &O::test_path, "file of test and prediction text; null: none");
  schema.field("tokenizer", &O::tokenizer,
               "a tokenizer.json of Hugging Face: byte-level BPE, BPE with byte fallback, Unigram");
  schema.field("example", &O::example, "kind of example: block (of `length` tokens) or line",
               {{"block", TextExample::kBlock}, {"line", TextExample::kLine}});
  schema.field("length", &O::length, "tokens in an example; lines are cut or padded").at_least(1);
  schema.field("padding", &O::padding, "the id that pads lines").at_least(0);
  schema.field("pad_to", &O::pad_to, "length of padded lines: `length`, or the batch's longest",
               {{"length", TextPadding::kLength}, {"longest", TextPadding::kLongest}});
  schema.field("val_fraction", &O::val_fraction, "fraction of the examples held out for validation, without val_path")
      .at_least(0)
      .below(1);
  describe_sampler_field(schema);
  describe_loader_fields(schema);
}

TokenText::TokenText(const Options& options) : options_(options), sampling_(make_sampling(options.sampler)) {
  if (options_.path.empty()) throw ConfigError("data.path is not set; hint: a text file");
  if (options_.tokenizer.empty())
    throw ConfigError("data.tokenizer is not set; hint: a tokenizer.json of Hugging Face");
}

TokenText::Examples TokenText::read(const std::string& path) const {
  const MappedFile file(path);
  const std::string_view text = file.text();
  std::shared_ptr<const Dataset> examples;
  if (options_.example == TextExample::kBlock) {
    std::vector<int32_t> ids;
    with_place(path, [&] { tokenizer_->append_ids(text, ids); });
    examples = std::make_shared<TokenBlocks>(std::move(ids), options_.length);
  } else {
    std::vector<std::vector<int32_t>> lines;
    int64_t number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line = text.substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      begin = end + 1;
      ++number;
      if (line.empty()) continue;
      std::vector<int32_t> ids;
      with_place(fmt::format("{}:{}", path, number), [&] { tokenizer_->append_ids(line, ids); });
      ids.resize(std::min(ids.size(), static_cast<size_t>(options_.length)));
      lines.push_back(std::move(ids));
    }
    examples = std::make_shared<TokenLines>(std::move(lines), options_);
  }
  if (examples->size() == 0)
    throw Error("data", fmt::format("{} has no {}", path,
                                    options_.example == TextExample::kBlock
                                        ? fmt::format("block of {} tokens and one more", options_.length)
                                        : std::string("lines")));
  return examples;
}

void TokenText::setup(Stage stage) {
  if (tokenizer_ == nullptr) tokenizer_ = std::make_shared<Tokenizer>(options_.tokenizer);
  if (stage == Stage::kTest || stage == Stage::kPredict) {
    if (test_ == nullptr && options_.test_path) test_ = read(*options_.test_path);
    return;
  }
  if (train_ != nullptr) return;
  const Examples all = read(options_.path);
  if (options_.val_path) {
    train_ = all;
    validation_ = read(*options_.val_path);
    return;
  }
  const auto held_out = static_cast<int64_t>(std::nearbyint(options_.val_fraction * static_cast<double>(all->size())));
  const int64_t kept = std::max<int64_t>(all->size() - held_out, 1);
  const auto rows = [&](int64_t begin, int64_t end) -> Examples {
    if (begin == end) return nullptr;
    std::vector<int64_t> indices(static_cast<size_t>(end - begin));
    std::iota(indices.begin(), indices.end(), begin);
    return std::make_shared<Subset>(all, std::move(indices));
  };
  train_ = rows(0, kept);
  validation_ = rows(kept, all->size());
}

DataLoader TokenText::train_dataloader() {
  if (train_ == nullptr) return {};
  return sampled_loader(train_, training_loader_options(options_), sampling_.get(),
                        [this](const std::string& name) { return read_column(*train_, name); });
}

DataLoader TokenText::evaluation_loader(const Examples& examples) const {
  return examples == nullptr ? DataLoader() : DataLoader(examples, evaluation_loader_options(options_));
}

DataLoaders TokenText::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders TokenText::test_dataloader() { return evaluation_loader(test_); }
DataLoaders TokenText::predict_dataloader() { return evaluation_loader(test_); }

}  // namespace levin::data
