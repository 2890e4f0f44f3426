#include <levin/core/data/fetch_trace.h>

#include <levin/core/base/error_notes.h>
#include <levin/core/base/type_name.h>
#include <levin/core/data/data_notes.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

namespace {

thread_local FetchTrace* t_trace = nullptr;

}  // namespace

FetchTrace::Scope::Scope(FetchTrace& trace) : outer_(std::exchange(t_trace, &trace)) {}
FetchTrace::Scope::~Scope() { t_trace = outer_; }

void FetchTrace::begin_batch(int64_t batch, const std::type_info& type, std::span<const int64_t> indices) {
  if (t_trace == nullptr) return;
  ErrorNotes notes;
  note_data(notes, "get_batch", type, indices);
  FetchTrace& trace = *t_trace;
  const MutexLock lock(trace.mutex_);
  trace.batch_ = batch;
  trace.example_ = -1;
  trace.type_ = &type;
  trace.examples_ = std::move(notes.examples);
}

void FetchTrace::begin_example(int64_t index) {
  if (t_trace == nullptr) return;
  FetchTrace& trace = *t_trace;
  const MutexLock lock(trace.mutex_);
  trace.example_ = index;
}

void FetchTrace::end_batch() {
  if (t_trace == nullptr) return;
  FetchTrace& trace = *t_trace;
  const MutexLock lock(trace.mutex_);
  trace.type_ = nullptr;
}

std::string FetchTrace::describe() const {
  const MutexLock lock(mutex_);
  if (type_ == nullptr) return "";
  const std::string name = short_class_name(*type_);
  if (example_ >= 0) return fmt::format("get of {}, example {}, batch {}", name, example_, batch_);
  if (examples_.empty()) return fmt::format("next of {}, batch {}", name, batch_);
  return fmt::format("get_batch of {}, {}, batch {}", name, examples_, batch_);
}

}  // namespace levin::data
