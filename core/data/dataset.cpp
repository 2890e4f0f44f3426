#include <levin/core/data/dataset.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_notes.h>
#include <levin/core/data/example_stack.h>
#include <levin/core/data/fetch_trace.h>

#include <typeinfo>
#include <utility>

namespace levin::data {

namespace {

/// The data set whose default get_batch runs in this thread. Its default get must not call get_batch in turn.
thread_local const Dataset* t_fetching_by_get = nullptr;

class FetchingByGet {
 public:
  explicit FetchingByGet(const Dataset* dataset) : outer_(std::exchange(t_fetching_by_get, dataset)) {}
  ~FetchingByGet() { t_fetching_by_get = outer_; }
  FetchingByGet(const FetchingByGet&) = delete;
  FetchingByGet& operator=(const FetchingByGet&) = delete;

 private:
  const Dataset* outer_;
};

}  // namespace

Batch Dataset::get(int64_t index, Generator& generator) const {
  if (t_fetching_by_get == this)
    throw Error("data",
                "the data set overrides neither get nor get_batch; hint: override get(index, generator), or "
                "get_batch(indices, generator) where a whole batch can be fetched at once");
  Batch batch = get_batch({&index, 1}, generator);
  for (auto& item : batch.items())
    if (item.second.defined() && item.second.dim() > 0) item.second = item.second.select(0, 0);
  return batch;
}

Batch Dataset::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  FetchingByGet guard(this);
  const auto example = [&](int64_t index) {
    Generator sample_generator = generator.for_sample(index);
    FetchTrace::begin_example(index);
    return noting_errors([&] { return get(index, sample_generator); },
                         [&](ErrorNotes& notes) {
                           note_data(notes, "get", typeid(*this), {&index, 1});
                         });
  };
  if (const CollateFunction collate_examples = collate()) {
    std::vector<Batch> examples;
    examples.reserve(indices.size());
    for (int64_t index : indices) examples.push_back(example(index));
    return noting_errors([&] { return collate_examples(examples); },
                         [&](ErrorNotes& notes) { note_data(notes, "collate", typeid(*this), indices); });
  }
  ExampleStack stack(static_cast<int64_t>(indices.size()));
  for (int64_t index : indices) {
    const Batch next = example(index);
    noting_errors([&] { stack.add(next); },
                  [&](ErrorNotes& notes) {
                    note_data(notes, "collate", typeid(*this), {&index, 1});
                  });
  }
  return stack.finish();
}

void ExampleStream::skip(int64_t count) {
  for (int64_t i = 0; i < count && next().has_value(); ++i) {
  }
}

Batch stack_examples(std::span<const Batch> examples) {
  ExampleStack stack(static_cast<int64_t>(examples.size()));
  for (const auto& example : examples) stack.add(example);
  return stack.finish();
}

}  // namespace levin::data
