#include <levin/core/data/text_lines.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

void TextLinesOptions::describe(Schema<TextLinesOptions>& schema) {
  using O = TextLinesOptions;
  schema.field("path", &O::path, "a UTF-8 text file");
  schema.field("max_length", &O::max_length, "characters in an example; lines are cut or padded with 0").at_least(1);
  schema.field("skip_empty", &O::skip_empty, "leave out lines without characters");
}

TextLines::TextLines(const TextLinesOptions& options, std::shared_ptr<const CharacterVocabulary> vocabulary)
    : max_length_(options.max_length), file_(options.path), vocabulary_(std::move(vocabulary)) {
  schema_of<TextLinesOptions>().validate(options, "text lines");
  const std::string_view text = file_.text();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    size_t length = end - begin;
    if (length > 0 && text[end - 1] == '\r') --length;
    if (length > 0 || !options.skip_empty) lines_.push_back({begin, length});
    begin = end + 1;
  }
  if (lines_.empty()) throw Error("data", fmt::format("{} has no lines", options.path));
  if (vocabulary_ == nullptr) vocabulary_ = std::make_shared<CharacterVocabulary>(text);
}

std::string_view TextLines::line(int64_t index) const {
  if (index < 0 || index >= size())
    throw Error("data", fmt::format("there is no line {}; the text has {}", index, size()));
  const Line& line = lines_[static_cast<size_t>(index)];
  return file_.text().substr(line.begin, line.length);
}

Batch TextLines::get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const {
  const auto count = static_cast<int64_t>(indices.size());
  at::Tensor text = at::full({count, max_length_}, CharacterVocabulary::kPadding, at::kLong);
  at::Tensor lengths = at::empty({count}, at::kLong);
  auto* ids = text.mutable_data_ptr<int64_t>();
  auto* length = lengths.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < count; ++row)
    length[row] = vocabulary_->encode(line(indices[static_cast<size_t>(row)]),
                                      {ids + row * max_length_, static_cast<size_t>(max_length_)});
  return {{"text", std::move(text)}, {"length", std::move(lengths)}};
}

}  // namespace levin::data
