#pragma once

#include <levin/core/data/batch_reader.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/skipped_examples.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace levin::data {

/// Gathers the examples of one reader of an unsized data set into batches.
class StreamReader : public BatchReader {
 public:
  /// `skipped`: what takes note of examples that cannot be read, which are left out; nullptr: they are errors.
  StreamReader(std::shared_ptr<const IterableDataset> dataset, const StreamContext& context, int64_t batch_size,
               bool drop_last, std::shared_ptr<SkippedExamples> skipped = nullptr);

  std::optional<Batch> next() override;

  /// Advances to after batch `count` of this reader; returns false when it has fewer. Reads only the last of them and
  /// skips the others by ExampleStream::skip; where examples may be left out it reads them all, to know which.
  bool advance_to(int64_t count);
  /// Reads the whole stream from its beginning; returns the number of its batches.
  int64_t count_batches();

 private:
  bool read_examples();
  std::optional<Batch> next_example();
  template <class Function>
  auto noted(const char* name, const Function& function);

  std::shared_ptr<const IterableDataset> dataset_;
  StreamContext context_;
  int64_t batch_size_;
  bool drop_last_;
  std::shared_ptr<SkippedExamples> skipped_;
  std::unique_ptr<ExampleStream> stream_;
  std::vector<Batch> examples_;
  int64_t given_ = 0;
  int64_t read_ = 0;  ///< examples, those left out included
  bool ended_ = false;
};

/// Readers of a pass whose batches are dealt round robin, leaving out those that have ended.
struct DealtReaders {
  std::vector<std::unique_ptr<StreamReader>> readers;
  int64_t turn = 0;  ///< the reader that gives the next batch
};

/// Advances the readers to where `batch` batches have been dealt. Streams may end at different times, so each one's
/// share of these is found by trying.
DealtReaders deal_from(std::vector<std::unique_ptr<StreamReader>> readers, int64_t batch);

}  // namespace levin::data
