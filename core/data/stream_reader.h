#pragma once

#include <levin/core/data/batch_reader.h>
#include <levin/core/data/dataset.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace levin::data {

/// Gathers the examples of one reader of an unsized data set into batches.
class StreamReader : public BatchReader {
 public:
  StreamReader(std::shared_ptr<const IterableDataset> dataset, const StreamContext& context, int64_t batch_size,
               bool drop_last);

  std::optional<Batch> next() override;

  /// Goes on until `count` batches of this reader are behind it; false when it has fewer. Reads only the last of them
  /// and leaves out the others by ExampleStream::skip.
  bool advance_to(int64_t count);
  /// Reads all of the stream from its beginning; the number of its batches.
  int64_t count_batches();

 private:
  bool read_examples();
  template <class Function>
  auto noted(const char* name, const Function& function);

  std::shared_ptr<const IterableDataset> dataset_;
  StreamContext context_;
  int64_t batch_size_;
  bool drop_last_;
  std::unique_ptr<ExampleStream> stream_;
  std::vector<Batch> examples_;
  int64_t given_ = 0;
  bool ended_ = false;
};

/// The readers of a pass whose batches are dealt round robin, leaving out those that have ended.
struct DealtReaders {
  std::vector<std::unique_ptr<StreamReader>> readers;
  int64_t turn = 0;  ///< the reader that gives the next batch
};

/// Readers that stand where `batch` batches were dealt. Streams may end at different times, so how many of these each
/// one gave is found by trying.
DealtReaders deal_from(std::vector<std::unique_ptr<StreamReader>> readers, int64_t batch);

}  // namespace levin::data
