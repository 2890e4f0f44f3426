#include <levin/core/data/queue.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/data/batch_state.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <iterator>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

/// Whether examples can be stacked.
bool are_alike(const Batch& a, const Batch& b) {
  if (a.items().size() != b.items().size() || a.text_items().size() != b.text_items().size()) return false;
  for (const auto& [name, tensor] : a.items()) {
    const at::Tensor* const other = b.find(name);
    if (other == nullptr || other->scalar_type() != tensor.scalar_type() || other->sizes() != tensor.sizes())
      return false;
  }
  return std::ranges::all_of(a.text_items(), [&](const auto& item) { return b.find_texts(item.first) != nullptr; });
}

/// A copy that the writer's later changes of its tensors do not reach.
Batch copy_of(const Batch& example, size_t writer) {
  Batch copy;
  for (const auto& [name, tensor] : example.items()) {
    if (!tensor.defined())
      throw Error("data",
                  fmt::format("'{}' of an example that writer {} put into a queue is an undefined tensor; valid: "
                              "a tensor with values",
                              name, writer));
    copy.set(name, tensor.detach().clone());
  }
  for (const auto& [name, texts] : example.text_items()) copy.set_texts(name, texts);
  return copy;
}

/// Saves examples, stacked where they can be: a tensor a name.
State examples_to_state(const std::deque<Batch>& examples) {
  State state = State::map();
  state["count"] = std::ssize(examples);
  if (examples.empty()) return state;
  const std::vector<Batch> list(examples.begin(), examples.end());
  if (std::ranges::all_of(list, [&](const Batch& example) { return are_alike(list.front(), example); })) {
    state["stacked"] = to_state(stack_examples(list));
    return state;
  }
  State each = State::list();
  for (const Batch& example : list) each.push_back(to_state(example));
  state["each"] = std::move(each);
  return state;
}

std::deque<Batch> examples_of_state(const State& state) {
  std::deque<Batch> examples;
  if (const State* const stacked = state.find("stacked")) {
    const Batch batch = to_batch(*stacked);
    for (int64_t i = 0; i < state.at("count").as_int(); ++i) {
      Batch example = batch.slice(i, i + 1);
      for (auto& [name, tensor] : example.items()) tensor = tensor.select(0, 0).clone();
      examples.push_back(std::move(example));
    }
  } else if (const State* const each = state.find("each")) {
    for (const State& example : each->as_list()) examples.push_back(to_batch(example));
  }
  return examples;
}

/// Thrown by `put` into a closed queue; the queue's own threads end with it.
class ClosedError : public Error {
 public:
  ClosedError()
      : Error("data",
              "a queue was given an example after it was closed; valid: before; hint: a writer that is told so ends") {}
};

}  // namespace

void QueueOptions::describe(Schema<QueueOptions>& schema) {
  using O = QueueOptions;
  schema.field("capacity", &O::capacity, "examples that wait to be read").at_least(1);
  schema.field("when_full", &O::when_full, "a writer waits for room (wait), or its example is dropped (drop)",
               {{"wait", WhenFull::kWait}, {"drop", WhenFull::kDrop}});
  schema.field("timeout", &O::timeout, "seconds that a reader or a writer waits; 0: no limit")
      .at_least(0)
      .at_most(O::kMaxTimeout);
}

/// What a queue, its writers and its streams share. Examples are numbered in the order in which they came in.
class Queue::Writer::Core {
 public:
  Core(const QueueOptions& options, CollateFunction collate) : options_(options), collate_(std::move(collate)) {}

  // ---- Writers

  size_t add_writer() {
    const MutexLock lock(mutex_);
    if (has_ended())
      throw Error("data",
                  "a queue was asked for a writer after all of its writers have ended; valid: before the last "
                  "one ends");
    writers_.emplace_back();
    if (const size_t index = writers_.size() - 1; index < restored_.size()) {
      writers_.back().position = restored_[index].position;
      writers_.back().state = restored_[index].state;
    }
    return writers_.size() - 1;
  }

  void start_later(std::function<void(Writer&)> write, Writer writer) {
    const MutexLock lock(mutex_);
    waiting_.emplace_back(std::move(write), std::move(writer));
  }

  bool put(size_t index, const Batch& given, State state) {
    if (given.empty()) throw Error("data", "a queue was given an empty example; valid: at least one tensor or text");
    Batch example = copy_of(given, index);
    MutexLock lock(mutex_);
    if (closed_) throw ClosedError();
    if (writers_[index].ended)
      throw Error("data", fmt::format("writer {} of a queue put an example in after its end; got example {}; valid: "
                                      "before end()",
                                      index, writers_[index].position));
    written_ = true;
    bool is_in = waiting() < options_.capacity;
    if (!is_in && options_.when_full == WhenFull::kWait) {
      const auto has_room = [this]() LEVIN_REQUIRES(mutex_) { return closed_ || waiting() < options_.capacity; };
      if (!wait(lock, has_room_, has_room))
        throw Error("data", fmt::format("a queue is full, and no example was read for {} s, its timeout; got {} in it; "
                                        "valid: capacity {}; hint: when_full: drop, or a reader that is faster",
                                        options_.timeout, waiting(), options_.capacity));
      if (closed_) throw ClosedError();
      is_in = true;
    }
    // Together: a checkpoint has both or neither.
    if (is_in)
      examples_.push_back(std::move(example));
    else
      ++dropped_;
    ++writers_[index].position;
    writers_[index].state = std::move(state);
    lock.unlock();
    has_example_.notify_one();
    return is_in;
  }

  int64_t position(size_t index) const {
    const MutexLock lock(mutex_);
    return writers_[index].position;
  }

  State state(size_t index) const {
    const MutexLock lock(mutex_);
    return writers_[index].state;
  }

  void end(size_t index, std::exception_ptr error) {
    {
      const MutexLock lock(mutex_);
      if (writers_[index].ended) return;
      writers_[index].ended = true;
      if (error != nullptr && error_ == nullptr) error_ = std::move(error);
    }
    has_example_.notify_all();
  }

  /// A writer is destroyed. `unwinding`: by an exception.
  void leave(size_t index, bool unwinding) {
    {
      const MutexLock lock(mutex_);
      if (writers_[index].ended || closed_) return;
    }
    const int64_t count = position(index);
    end(index, std::make_exception_ptr(Error(
                   "data", fmt::format("a writer of a queue is gone; got no end() of writer {} after {}{}; valid: "
                                       "end() behind the last one; hint: fail(std::current_exception()) tells why, "
                                       "and add_writer does both",
                                       index, counted(count, "example"),
                                       unwinding ? ", but an exception in its thread" : ""))));
  }

  // ---- The reader

  void start() LEVIN_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (closed_) return;
    if (!std::exchange(has_started_, true) && writers_.size() < std::max<size_t>(1, restored_.size()))
      log::warning(fmt::format("a queue is read that has {}; {}hint: add_writer, or writer(), before it is read",
                               counted(std::ssize(writers_), "writer"),
                               restored_.empty()
                                   ? "it waits for one; "
                                   : fmt::format("its checkpoint has {}, each with the place where it goes on; ",
                                                 counted(std::ssize(restored_), "writer"))));
    for (auto& [write, writer] : std::exchange(waiting_, {}))
      threads_.emplace_back([write = std::move(write), writer = std::move(writer)]() mutable {
        try {
          write(writer);
          writer.end();
        } catch (const ClosedError&) {
          writer.end();
        } catch (...) {
          writer.fail(std::current_exception());
        }
      });
  }

  /// Returns the next example, or nothing at the end.
  std::optional<Batch> next() {
    MutexLock lock(mutex_);
    const auto is_over = [this]() LEVIN_REQUIRES(mutex_) {
      return waiting() > 0 || closed_ || error_ != nullptr || has_ended();
    };
    if (!wait(lock, has_example_, is_over))
      throw Error("data",
                  fmt::format("a queue has been empty for {} s, its timeout; got {} in all, of {}; hint: are its "
                              "writers running?",
                              options_.timeout, counted(first_ + std::ssize(examples_), "example"),
                              counted(std::ssize(writers_), "writer")));
    if (closed_) return std::nullopt;
    if (waiting() == 0) {
      if (error_ != nullptr) std::rethrow_exception(error_);
      return std::nullopt;
    }
    Batch example = examples_[static_cast<size_t>(next_++ - first_)];
    lock.unlock();
    has_room_.notify_one();
    return example;
  }

  /// A batch of the stream is complete. What training has fetched ahead when a checkpoint is saved is the last batch;
  /// the one before it is read again on a resume.
  void note_batch(int64_t size) {
    const MutexLock lock(mutex_);
    batch_size_ = std::max(batch_size_, size);
    forget(2 * batch_size_);
  }

  /// Forgets what was read.
  void note_taken() {
    const MutexLock lock(mutex_);
    forget(0);
  }

  /// Examples that could not be put together are read again.
  void give_back(int64_t count) {
    const MutexLock lock(mutex_);
    next_ -= count;
  }

  std::shared_ptr<void> begin_reading(const StreamContext& context) {
    const MutexLock lock(mutex_);
    if (!reading_.expired() && context.reader != reader_)
      throw Error("data",
                  fmt::format("a queue is read by one rank; got readers {} and {} of {}; valid: a queue for each "
                              "rank; hint: make it in the module's train_dataloader()",
                              reader_, context.reader, context.num_readers));
    const auto reading = std::make_shared<int>();
    reading_ = reading;
    reader_ = context.reader;
    return reading;
  }

  /// Begins a pass with the example that is next; again, where a run is resumed in it, with its first.
  void begin_pass(int64_t epoch) {
    const MutexLock lock(mutex_);
    if (std::exchange(resumes_, false) && pass_epoch_ == epoch) return go_to(pass_begin_);
    pass_epoch_ = epoch;
    pass_begin_ = next_;
  }

  /// Goes on in the pass of an epoch behind `count` examples of it. Returns false where no such pass is known.
  bool continue_pass(int64_t epoch, int64_t count) {
    const MutexLock lock(mutex_);
    resumes_ = false;
    if (pass_epoch_ != epoch) return false;
    go_to(pass_begin_ + count);
    return true;
  }

  int64_t size() const {
    const MutexLock lock(mutex_);
    return waiting();
  }

  int64_t dropped() const {
    const MutexLock lock(mutex_);
    return dropped_;
  }

  void close() LEVIN_EXCLUDES(mutex_) {
    std::vector<std::thread> threads;
    std::vector<std::pair<std::function<void(Writer&)>, Writer>> not_started;  // refer to this object
    {
      const MutexLock lock(mutex_);
      closed_ = true;
      // A writer that closes its queue is joined by the destructor.
      const auto is_own = [](const std::thread& thread) { return thread.get_id() == std::this_thread::get_id(); };
      const auto others = std::partition(threads_.begin(), threads_.end(), is_own);
      std::move(others, threads_.end(), std::back_inserter(threads));
      threads_.erase(others, threads_.end());
      not_started = std::exchange(waiting_, {});
    }
    has_room_.notify_all();
    has_example_.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  Batch collate(std::span<const Batch> examples) const {
    return collate_ ? collate_(examples) : stack_examples(examples);
  }

  // ---- Checkpoints

  State state_dict() const {
    const MutexLock lock(mutex_);
    State state = State::map();
    state["examples"] = examples_to_state(examples_);
    state["first"] = first_;
    state["next"] = next_;
    state["pass_epoch"] = pass_epoch_;
    state["pass_begin"] = pass_begin_;
    state["batch_size"] = batch_size_;
    state["dropped"] = dropped_;
    State writers = State::list();
    for (const WriterPlace& writer : writers_.size() < restored_.size() && !written_ ? restored_ : writers_) {
      State place = State::map();
      place["position"] = writer.position;
      place["state"] = writer.state;
      writers.push_back(std::move(place));
    }
    state["writers"] = std::move(writers);
    return state;
  }

  void load_state_dict(const State& state) {
    if (!state.is_map() || state.find("pass_epoch") == nullptr || state.find("examples") == nullptr)
      throw Error("checkpoint", "what is to be loaded is no state of a queue; valid: what its state_dict() gave");
    auto examples = examples_of_state(state.at("examples"));
    const int64_t first = state.at("first").as_int();
    const int64_t next = state.at("next").as_int();
    const int64_t count = state.at("examples").at("count").as_int();
    if (count != std::ssize(examples) || first < 0 || next < first || next - first > count)
      throw Error(
          "checkpoint",
          fmt::format("the state of a queue contradicts itself: it goes on with example {} of {} from {} on; hint: "
                      "it is damaged, or was not written by state_dict()",
                      next, std::ssize(examples), first));
    {
      const MutexLock lock(mutex_);
      pass_epoch_ = state.at("pass_epoch").as_int();
      pass_begin_ = state.at("pass_begin").as_int();
      batch_size_ = state.at("batch_size").as_int();
      resumes_ = true;
      if (written_) {  // the examples behind those that were saved are here, or will be
        go_to(next);
        return;
      }
      examples_ = std::move(examples);
      first_ = first;
      next_ = next;
      dropped_ = state.at("dropped").as_int();
      restored_.clear();
      for (const State& saved : state.at("writers").as_list())
        restored_.push_back({.position = saved.at("position").as_int(), .state = saved.at("state")});
      for (size_t i = 0; i < std::min(writers_.size(), restored_.size()); ++i) {
        writers_[i].position = restored_[i].position;
        writers_[i].state = restored_[i].state;
      }
    }
    has_example_.notify_all();
  }

 private:
  struct WriterPlace {
    int64_t position = 0;
    State state = {};
    bool ended = false;
  };

  int64_t waiting() const LEVIN_REQUIRES(mutex_) { return first_ + std::ssize(examples_) - next_; }
  bool has_ended() const LEVIN_REQUIRES(mutex_) {
    return !writers_.empty() && std::ranges::all_of(writers_, &WriterPlace::ended);
  }

  /// Returns whether the condition is met, which is false after the timeout.
  template <class Predicate>
  bool wait(MutexLock& lock, ConditionVariable& changed, const Predicate& is_met) LEVIN_REQUIRES(mutex_) {
    if (options_.timeout > 0) return changed.wait_for(lock, std::chrono::duration<double>(options_.timeout), is_met);
    changed.wait(lock, is_met);
    return true;
  }

  /// Forgets what was read but for the last `kept` examples.
  void forget(int64_t kept) LEVIN_REQUIRES(mutex_) {
    while (next_ - first_ > kept) {
      examples_.pop_front();
      ++first_;
    }
  }

  void go_to(int64_t number) LEVIN_REQUIRES(mutex_) {
    if (number < first_ || number > first_ + std::ssize(examples_))
      throw Error("checkpoint",
                  fmt::format("a queue cannot go on where the checkpoint was saved; got example {}; valid: {} to {}, "
                              "which it still has; hint: a queue of its own for the run that is resumed",
                              number, first_, first_ + std::ssize(examples_)));
    next_ = number;
  }

  const QueueOptions options_;
  const CollateFunction collate_;

  mutable Mutex mutex_;
  ConditionVariable has_room_;
  ConditionVariable has_example_;
  std::deque<Batch> examples_ LEVIN_GUARDED_BY(mutex_);  ///< some that were read, and all that were not
  int64_t first_ LEVIN_GUARDED_BY(mutex_) = 0;           ///< number of the first of them
  int64_t next_ LEVIN_GUARDED_BY(mutex_) = 0;            ///< number of the one that is read next
  int64_t pass_epoch_ LEVIN_GUARDED_BY(mutex_) = -1;
  int64_t pass_begin_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< number of the pass's first example
  int64_t batch_size_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< the largest of the streams
  int64_t dropped_ LEVIN_GUARDED_BY(mutex_) = 0;
  bool resumes_ LEVIN_GUARDED_BY(mutex_) = false;  ///< no pass has begun since a state was loaded
  bool written_ LEVIN_GUARDED_BY(mutex_) = false;
  bool closed_ LEVIN_GUARDED_BY(mutex_) = false;
  bool has_started_ LEVIN_GUARDED_BY(mutex_) = false;  ///< it was read
  std::exception_ptr error_ LEVIN_GUARDED_BY(mutex_);
  std::vector<WriterPlace> writers_ LEVIN_GUARDED_BY(mutex_);
  std::vector<WriterPlace> restored_ LEVIN_GUARDED_BY(mutex_);
  std::weak_ptr<void> reading_ LEVIN_GUARDED_BY(mutex_);  ///< the stream that was made last
  int64_t reader_ LEVIN_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<std::function<void(Writer&)>, Writer>> waiting_ LEVIN_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ LEVIN_GUARDED_BY(mutex_);
};

Queue::Writer::Writer(std::shared_ptr<Core> core, size_t index)
    : core_(std::move(core)), index_(index), exceptions_(std::uncaught_exceptions()) {}
Queue::Writer::Writer(Writer&& other) noexcept = default;
Queue::Writer::~Writer() {
  if (core_ != nullptr) core_->leave(index_, std::uncaught_exceptions() > exceptions_);
}

Queue::Writer::Core& Queue::Writer::core() const {
  if (core_ == nullptr) throw Error("data", "a writer of a queue was moved from; valid: the one that it was moved to");
  return *core_;
}
bool Queue::Writer::put(const Batch& example, State state) { return core().put(index_, example, std::move(state)); }
int64_t Queue::Writer::position() const { return core().position(index_); }
State Queue::Writer::state() const { return core().state(index_); }
void Queue::Writer::end() { core().end(index_, nullptr); }
void Queue::Writer::fail(std::exception_ptr error) {
  if (error == nullptr)
    error = std::make_exception_ptr(Error(
        "data", fmt::format("writer {} of a queue failed without an exception; hint: std::current_exception() has "
                            "one inside of a catch block",
                            index_)));
  core().end(index_, std::move(error));
}

class Queue::Stream : public ExampleStream {
 public:
  Stream(std::shared_ptr<Core> core, const StreamContext& context)
      : core_(std::move(core)), epoch_(context.epoch), reading_(core_->begin_reading(context)) {}

  std::optional<Batch> next() override {
    if (!std::exchange(has_begun_, true)) core_->begin_pass(epoch_);
    return core_->next();
  }

  void skip(int64_t count) override {
    if (!has_begun_ && core_->continue_pass(epoch_, count)) {
      has_begun_ = true;
      return;
    }
    ExampleStream::skip(count);
  }

 private:
  std::shared_ptr<Core> core_;
  int64_t epoch_;
  std::shared_ptr<void> reading_;
  bool has_begun_ = false;
};

Queue::Queue(const QueueOptions& options, CollateFunction collate)
    : core_(std::make_shared<Core>(options, std::move(collate))) {
  schema_of<QueueOptions>().validate(options, "queue");
}

Queue::~Queue() { close(); }

Queue::Writer Queue::writer() { return Writer(core_, core_->add_writer()); }
void Queue::add_writer(std::function<void(Writer&)> write) {
  if (write == nullptr) throw Error("data", "add_writer of a queue was given no function");
  core_->start_later(std::move(write), writer());
}

std::optional<Batch> Queue::take(int64_t count) {
  if (count < 1) throw Error("data", fmt::format("a queue was asked for {} examples; valid: at least 1", count));
  core_->start();
  std::vector<Batch> examples;
  try {
    while (std::ssize(examples) < count) {
      auto example = core_->next();
      if (!example) break;
      examples.push_back(std::move(*example));
    }
  } catch (...) {
    if (examples.empty()) throw;  // else the next call throws it
  }
  if (examples.empty()) return std::nullopt;
  Batch batch;
  try {
    batch = core_->collate(examples);
  } catch (...) {
    core_->give_back(std::ssize(examples));
    throw;
  }
  core_->note_taken();
  return batch;
}

int64_t Queue::size() const { return core_->size(); }
int64_t Queue::dropped() const { return core_->dropped(); }
void Queue::close() { core_->close(); }

std::unique_ptr<ExampleStream> Queue::stream(const StreamContext& context) const {
  core_->start();
  return std::make_unique<Stream>(core_, context);
}

CollateFunction Queue::collate() const {
  return [core = core_](std::span<const Batch> examples) {
    core->note_batch(std::ssize(examples));
    return core->collate(examples);
  };
}

State Queue::state_dict() const { return core_->state_dict(); }
void Queue::load_state_dict(const State& state) { core_->load_state_dict(state); }

}  // namespace levin::data
