#include <levin/core/data/stream_reader.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_notes.h>
#include <levin/core/data/fetch_trace.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <typeinfo>
#include <utility>

namespace levin::data {

StreamReader::StreamReader(std::shared_ptr<const IterableDataset> dataset, const StreamContext& context,
                           int64_t batch_size, bool drop_last, std::shared_ptr<SkippedExamples> skipped)
    : dataset_(std::move(dataset)),
      context_(context),
      batch_size_(batch_size),
      drop_last_(drop_last),
      skipped_(std::move(skipped)) {}

/// Runs a function of the data set or of its stream, which an error then names.
template <class Function>
auto StreamReader::noted(const char* name, const Function& function) {
  return noting_errors(function, [&](ErrorNotes& notes) {
    const IterableDataset& dataset = *dataset_;
    note_data(notes, name, typeid(dataset));
    if (notes.examples.empty())
      notes.examples = fmt::format("reader {} of {}, its batch {}", context_.reader, context_.num_readers, given_);
  });
}

std::optional<Batch> StreamReader::next_example() {
  if (skipped_ == nullptr) return stream_->next();
  std::string reason;
  for (int64_t i = 0; i < SkippedExamples::kMostInARow; ++i) {
    std::optional<Batch> example;
    const auto failure = reason_of_failure([&] { example = stream_->next(); });
    const int64_t place = read_++;
    if (!failure) return example;
    reason = *failure;
    skipped_->note(fmt::format("example {} of reader {} of {}", place, context_.reader, context_.num_readers), reason);
  }
  throw Error("data", fmt::format("none of {} examples of a stream one after the other could be read; the last one: {}",
                                  SkippedExamples::kMostInARow, reason));
}

bool StreamReader::read_examples() {
  if (ended_) return false;
  if (stream_ == nullptr) {
    stream_ = noted("stream", [&] { return dataset_->stream(context_); });
    if (stream_ == nullptr) throw Error("data", "an unsized data set returned no stream (a null pointer)");
  }
  examples_.clear();
  const IterableDataset& dataset = *dataset_;
  FetchTrace::begin_batch(given_, typeid(dataset));
  noted("next", [&] {
    while (static_cast<int64_t>(examples_.size()) < batch_size_) {
      auto example = next_example();
      if (!example) break;
      examples_.push_back(std::move(*example));
    }
  });
  ended_ = static_cast<int64_t>(examples_.size()) < batch_size_;
  const bool has_batch = !ended_ || (!drop_last_ && !examples_.empty());
  if (has_batch) ++given_;
  return has_batch;
}

std::optional<Batch> StreamReader::next() {
  if (!read_examples()) return std::nullopt;
  const CollateFunction collate_examples = dataset_->collate();
  Batch batch =
      noted("collate", [&] { return collate_examples ? collate_examples(examples_) : stack_examples(examples_); });
  examples_.clear();
  return batch;
}

bool StreamReader::advance_to(int64_t count) {
  if (count <= given_) return true;
  while (skipped_ != nullptr && given_ + 1 < count)
    if (!read_examples()) return false;
  if (const int64_t skipped = count - given_ - 1; skipped > 0) {
    if (stream_ == nullptr) stream_ = noted("stream", [&] { return dataset_->stream(context_); });
    noted("skip", [&] { stream_->skip(skipped * batch_size_); });
    given_ += skipped;
  }
  return read_examples();
}

int64_t StreamReader::count_batches() {
  stream_ = nullptr;
  given_ = 0;
  read_ = 0;
  ended_ = false;
  while (read_examples()) {
  }
  return given_;
}

namespace {

struct Deal {
  std::vector<int64_t> given;  ///< batches of each reader
  int64_t turn = 0;
};

/// Deals `batch` batches, or all there are, to readers of these lengths.
Deal deal(int64_t batch, const std::vector<int64_t>& lengths) {
  Deal result{std::vector<int64_t>(lengths.size(), 0), 0};
  const auto count = static_cast<int64_t>(lengths.size());
  int64_t passed_over = 0;
  while (batch > 0 && passed_over < count) {
    auto& given = result.given[static_cast<size_t>(result.turn)];
    if (given < lengths[static_cast<size_t>(result.turn)]) {
      ++given;
      --batch;
      passed_over = 0;
    } else {
      ++passed_over;
    }
    result.turn = (result.turn + 1) % count;
  }
  return result;
}

}  // namespace

DealtReaders deal_from(std::vector<std::unique_ptr<StreamReader>> readers, int64_t batch) {
  std::vector<int64_t> lengths(readers.size(), std::numeric_limits<int64_t>::max());
  for (;;) {
    const Deal dealt = deal(batch, lengths);
    bool all_given = true;
    for (size_t i = 0; i < readers.size(); ++i) {
      if (dealt.given[i] == lengths[i] || readers[i]->advance_to(dealt.given[i])) continue;
      lengths[i] = readers[i]->count_batches();
      all_given = false;
    }
    if (all_given) return {std::move(readers), dealt.turn};
  }
}

}  // namespace levin::data
