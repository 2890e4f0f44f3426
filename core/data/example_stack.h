#pragma once

#include <levin/core/data/batch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace levin::data {

/// Stacks examples by tensor name into one batch, and puts their texts one behind the other. Each example is copied as
/// it comes, so that its memory is free for the next one; a batch of small tensors would otherwise be allocated and
/// freed as a whole.
class ExampleStack {
 public:
  explicit ExampleStack(int64_t num_examples) : num_examples_(num_examples) {}

  /// Adds an example. Throws levin::Error when its tensors differ from the first example's in name, shape or type.
  void add(const Batch& example);
  /// Returns the batch, once all examples were added.
  Batch finish();

 private:
  struct Column {
    std::string name;
    at::Tensor stacked;        ///< [num_examples, ...]; undefined where `held` is used
    char* next_row = nullptr;  ///< in `stacked`
    size_t row_bytes = 0;
    std::vector<at::Tensor> held;  ///< examples whose bytes cannot be copied as they are; the first describes all
  };

  void begin(const Batch& first);
  void append(Column& column, const at::Tensor& tensor);
  void append_texts(const Batch& example);

  int64_t num_examples_;
  int64_t count_ = 0;
  std::vector<Column> columns_;
  std::vector<Batch::TextItem> texts_;
};

}  // namespace levin::data
