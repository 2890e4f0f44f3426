#include "text.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>

namespace example {

namespace {

/// The King James Bible as Debian's package bible-kjv has it, a verse a line, without the number that leads each verse.
std::string read_bible() {
  FILE* pipe = popen("bible -f gen1:1-rev22:21", "r");
  if (pipe == nullptr) throw levin::Error("data", "cannot start the program 'bible'");
  std::string numbered;
  std::array<char, 65536> part{};
  for (size_t count; (count = fread(part.data(), 1, part.size(), pipe)) > 0;) numbered.append(part.data(), count);
  if (pclose(pipe) != 0 || numbered.empty())
    throw levin::Error("data",
                       "the program 'bible' gave no text; hint: install the Debian package bible-kjv, or set data.path "
                       "to a text file");
  std::string verses;
  for (size_t begin = 0; begin < numbered.size();) {
    const size_t end = std::min(numbered.find('\n', begin), numbered.size());
    const size_t space = std::min(numbered.find(' ', begin), end);
    if (space < end) verses.append(numbered, space + 1, end - space - 1) += '\n';
    begin = end + 1;
  }
  return verses;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw levin::Error("data", "cannot read data.path: " + path);
  return text;
}

torch::Tensor encode(const levin::data::CharacterVocabulary& vocabulary, std::string_view text) {
  torch::Tensor ids = torch::empty({static_cast<int64_t>(text.size())}, torch::kLong);
  const int64_t count = vocabulary.encode(text, {ids.mutable_data_ptr<int64_t>(), text.size()});
  return ids.slice(0, 0, count);
}

/// Rows of `context` characters, one after the other, and for each character the next one.
std::shared_ptr<const levin::data::TensorDataset> rows_of(const torch::Tensor& text, int64_t context) {
  if (text.size(0) <= context) return nullptr;
  const torch::Tensor rows = text.unfold(0, context + 1, context);
  return std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"input", rows.slice(1, 0, context)}, {"target", rows.slice(1, 1)}});
}

}  // namespace

void TextOptions::describe(levin::Schema<TextOptions>& schema) {
  using O = TextOptions;
  schema.field("path", &O::path, "a UTF-8 text file; null: the King James Bible of Debian's package bible-kjv");
  schema.field("context", &O::context, "characters in a row").at_least(1);
  schema.field("batch_size", &O::batch_size, "rows in a batch of one rank").at_least(1);
  schema
      .field("global_batch_size", &O::global_batch_size,
             "rows in a batch of all ranks together, divided by their number; replaces batch_size")
      .at_least(1);
  schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead").at_least(0);
  schema.field("val_share", &O::val_share, "share of the text held out for validation, at its end")
      .at_least(0)
      .below(1);
  schema.field("prompt", &O::prompt, "what prediction continues")
      .require("at least one character", [](const auto& text) { return !text.empty(); });
  schema.field("samples", &O::samples, "how many times prediction continues it").at_least(1);
}

void Text::setup(levin::Stage /*stage*/) {
  if (vocabulary_) return;
  const std::string text = options_.path ? read_file(*options_.path) : read_bible();
  vocabulary_.emplace(text, levin::data::CharacterVocabulary::LineEnds::kKeep);
  const torch::Tensor ids = encode(*vocabulary_, text);
  const auto held_out = static_cast<int64_t>(options_.val_share * static_cast<double>(ids.size(0)));
  train_ = rows_of(ids.slice(0, 0, ids.size(0) - held_out), options_.context);
  validation_ = rows_of(ids.slice(0, ids.size(0) - held_out), options_.context);
  if (train_ == nullptr)
    throw levin::Error("data", "the text is too short for one row; got " + std::to_string(ids.size(0)) +
                                   " characters; hint: a smaller data.context");
  const torch::Tensor prompt = encode(*vocabulary_, options_.prompt);
  prompts_ = std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"input", prompt.expand({options_.samples, prompt.size(0)})}});
}

levin::DataLoader Text::loader_of(const Dataset& dataset, bool shuffle) const {
  if (dataset == nullptr) return {};
  // Every batch is full in training, so that every rank's counts the same.
  return levin::DataLoader(dataset, {.batch_size = options_.batch_size,
                                     .shuffle = shuffle,
                                     .num_workers = options_.num_workers,
                                     .drop_last = shuffle,
                                     .global_batch_size = options_.global_batch_size});
}

}  // namespace example
