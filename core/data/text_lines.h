#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/character_vocabulary.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/mapped_file.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin::data {

/// Options of TextLines, explained in describe().
struct TextLinesOptions {
  std::string path = {};
  int64_t max_length = 128;
  bool skip_empty = true;

  static void describe(Schema<TextLinesOptions>& schema);
};

/// The lines of a text file. The file is mapped and only the places of its lines are kept in memory. Batches: "text"
/// int64 [N, max_length], numbers of characters; "length" int64 [N], characters before the padding.
class TextLines : public Dataset {
 public:
  /// Opens the file. `vocabulary`: that of another text, such as the training text; default: this file's own. Throws
  /// levin::Error when the file cannot be read or has no lines.
  explicit TextLines(const TextLinesOptions& options, std::shared_ptr<const CharacterVocabulary> vocabulary = nullptr);

  int64_t size() const override { return static_cast<int64_t>(lines_.size()); }
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;

  /// Returns the whole line, without its end.
  std::string_view line(int64_t index) const;
  const std::shared_ptr<const CharacterVocabulary>& vocabulary() const { return vocabulary_; }

 private:
  struct Line {
    size_t begin;
    size_t length;
  };

  int64_t max_length_;
  MappedFile file_;
  std::vector<Line> lines_;
  std::shared_ptr<const CharacterVocabulary> vocabulary_;
};

}  // namespace levin::data
