#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/state.h>
#include <levin/core/data/dataset.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace levin::data {

/// What becomes of an example that is put into a full queue.
enum class WhenFull {
  kWait,  ///< its writer waits for room
  kDrop,  ///< it is dropped, and counted
};

/// Options of Queue.
struct QueueOptions {
  static constexpr double kMaxTimeout = 1e6;

  int64_t capacity = 1024;  ///< examples that wait to be read
  WhenFull when_full = WhenFull::kWait;
  double timeout = 0;  ///< seconds that a reader or a writer waits before it throws; 0: no limit

  static void describe(Schema<QueueOptions>& schema);
};

/// A bounded queue of examples between a program that makes data, such as a simulation, and training: a data set of
/// `fit`, and by `take` a source for an Engine. It ends when all of its writers have ended. See docs/simulations.md.
///
/// Its state is what it holds and where its writers are. With one writer, whose examples follow from its state, a run
/// that is resumed trains on the same examples in the same order as one that was not interrupted.
///
/// A queue is read by one rank at a time, in the thread that trains (num_workers: 0).
class Queue : public IterableDataset, public Stateful {
 public:
  /// One who puts examples in. Used by one thread at a time; may outlive the queue.
  class Writer {
   public:
    Writer(Writer&&) noexcept;
    Writer& operator=(Writer&&) = delete;
    /// Without `end` before it, the reader gets an error: a writer is gone.
    ~Writer();

    /// Puts a copy of one example in, without a batch dimension. `state`: what the writer needs to go on behind it.
    /// Returns whether it was taken in: false where it was dropped. Throws levin::Error once the queue is closed, after
    /// `end`, and where the queue stays full for the timeout.
    bool put(const Batch& example, State state = {});
    /// Returns how many examples it has tried to put in, in the run that is resumed too.
    int64_t position() const;
    /// Returns what the last `put` was given, also of the run that is resumed; null where there was none.
    State state() const;
    /// It has no more examples.
    void end();
    /// Ends, and hands an exception to the reader, who gets it behind the examples that are in the queue.
    void fail(std::exception_ptr error);

   private:
    friend class Queue;
    class Core;
    Writer(std::shared_ptr<Core> core, size_t index);
    Core& core() const;
    std::shared_ptr<Core> core_;  ///< nullptr once moved from
    size_t index_;
    int exceptions_;  ///< on their way when it was made
  };

  /// `collate`: puts examples together; nullptr stacks tensors by name. Throws ConfigError for options out of range.
  explicit Queue(const QueueOptions& options = {}, CollateFunction collate = nullptr);
  /// Closes it.
  ~Queue() override;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Returns a writer for a thread of the program's own. Throws levin::Error once all writers have ended.
  Writer writer();
  /// Runs `write` in a thread of the queue's own, from the first reading on, when a checkpoint is restored already. The
  /// writer ends where it returns; what it throws reaches the reader.
  void add_writer(std::function<void(Writer&)> write);

  /// Takes up to `count` examples, collated, and waits for them; fewer at the end, then nothing. Throws what a writer
  /// failed with, and levin::Error where the queue stays empty for the timeout. Examples that cannot be put together
  /// stay in it.
  std::optional<Batch> take(int64_t count);
  /// Returns the number of examples that wait to be read.
  int64_t size() const;
  /// Returns the number of examples that were dropped.
  int64_t dropped() const;
  /// Ends the reading: every later `put` throws, those that wait too. Joins the queue's own threads. Thread-safe.
  void close();

  /// Goes on with the examples that were not read yet, whatever the epoch.
  std::unique_ptr<ExampleStream> stream(const StreamContext& context) const override;
  CollateFunction collate() const override;

  State state_dict() const override;
  /// Throws levin::Error where writers have begun and what was read since the state was saved is not there any more.
  void load_state_dict(const State& state) override;

 private:
  using Core = Writer::Core;
  class Stream;
  const std::shared_ptr<Core> core_;
};

}  // namespace levin::data
