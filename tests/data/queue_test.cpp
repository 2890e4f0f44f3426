// A queue hands on every example once and in order, ends when its writers have ended, says what is wrong with them, and
// is saved so that a resumed run trains on what an uninterrupted one does.

#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "reader_checks.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/queue.h>
#include <levin/core/engine/engine.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using data::Queue;
using ::testing::AllOf;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::message_of;
using testing::quiet;
using testing::TinyModule;
using testing::TinyOptions;
using testing::weights;

Batch number(int64_t value) { return {{"value", torch::tensor(value)}}; }

std::vector<int64_t> values(const Batch& batch) {
  const at::Tensor& value = batch["value"];
  return {value.const_data_ptr<int64_t>(), value.const_data_ptr<int64_t>() + value.numel()};
}

std::vector<int64_t> take_all(Queue& queue, int64_t batch_size) {
  std::vector<int64_t> all;
  while (const auto batch = queue.take(batch_size)) {
    const auto some = values(*batch);
    EXPECT_LE(std::ssize(some), batch_size);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<int64_t> count_to(int64_t end) {
  std::vector<int64_t> numbers(static_cast<size_t>(end));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// A writer that counts, and goes on where it was.
std::function<void(Queue::Writer&)> counter(int64_t end) {
  return [end](Queue::Writer& out) {
    for (int64_t i = out.position(); i < end; ++i) out.put(number(i));
  };
}

TEST(Queue, GivesAllExamplesInOrderThenTheEnd) {
  for (const int64_t capacity : {1, 3, 100}) {
    Queue queue({.capacity = capacity});
    queue.add_writer(counter(50));
    EXPECT_EQ(take_all(queue, 8), count_to(50)) << capacity;
    EXPECT_EQ(queue.take(8), std::nullopt);
    EXPECT_EQ(queue.dropped(), 0);
  }
}

TEST(Queue, TakesFromManyWritersEachExampleOnce) {
  constexpr int64_t kWriters = 6;
  Queue queue({.capacity = 4});
  for (int64_t w = 0; w < kWriters; ++w)
    queue.add_writer([w](Queue::Writer& out) {
      for (int64_t i = 0; i < 40; ++i) out.put(number(100 * w + i));
    });
  const auto all = take_all(queue, 7);
  std::vector<int64_t> next(kWriters, 0);
  for (const int64_t value : all)
    EXPECT_EQ(value % 100, next[static_cast<size_t>(value / 100)]++);  // each in its order
  EXPECT_THAT(next, ::testing::Each(40));
}

TEST(Queue, AWriterWaitsForRoom) {
  Queue queue({.capacity = 2});
  auto writer = queue.writer();
  EXPECT_TRUE(writer.put(number(0)));
  EXPECT_TRUE(writer.put(number(1)));
  auto third = std::async(std::launch::async, [&] { return writer.put(number(2)); });
  EXPECT_EQ(third.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(queue.size(), 2);
  EXPECT_EQ(values(*queue.take(1)), std::vector<int64_t>{0});
  EXPECT_TRUE(third.get());
  writer.end();
  EXPECT_EQ(take_all(queue, 8), (std::vector<int64_t>{1, 2}));
}

TEST(Queue, DropsWhatItHasNoRoomFor) {
  Queue queue({.capacity = 3, .when_full = data::WhenFull::kDrop});
  auto writer = queue.writer();
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(writer.put(number(i)), i < 3) << i;
  EXPECT_EQ(queue.dropped(), 2);
  EXPECT_EQ(writer.position(), 5);
  EXPECT_EQ(values(*queue.take(3)), count_to(3));
  EXPECT_TRUE(writer.put(number(5)));
  writer.end();
  EXPECT_EQ(take_all(queue, 3), std::vector<int64_t>{5});
}

TEST(Queue, SaysWhatIsWrong) {
  Queue full({.capacity = 1, .timeout = 0.05});
  auto writer = full.writer();
  writer.put(number(0));
  EXPECT_THAT(message_of([&] { writer.put(number(1)); }),
              AllOf(HasSubstr("[data] a queue is full"), HasSubstr("0.05 s"), HasSubstr("got 1 in it"),
                    HasSubstr("valid: capacity 1"), HasSubstr("hint: when_full: drop")));
  EXPECT_EQ(writer.position(), 1);  // it did not come in
  full.take(1);
  EXPECT_THAT(message_of([&] { full.take(1); }), AllOf(HasSubstr("[data] a queue has been empty for 0.05 s"),
                                                       HasSubstr("got 1 example in all, of 1 writer")));
  EXPECT_THAT(message_of([&] { writer.put(Batch()); }), HasSubstr("an empty example"));
  EXPECT_THAT(message_of([&] { full.take(0); }), HasSubstr("valid: at least 1"));
  writer.end();
  EXPECT_THAT(message_of([&] { writer.put(number(2)); }), HasSubstr("after its end"));
  EXPECT_THAT(message_of([&] { full.writer(); }), HasSubstr("after all of its writers have ended"));
  EXPECT_THROW(Queue({.capacity = 0}), ConfigError);
  EXPECT_THROW(Queue({.timeout = -1}), ConfigError);
  EXPECT_THAT(message_of([] { DataLoader(std::make_shared<Queue>(), {.num_workers = 2}); }),
              AllOf(HasSubstr("read by the thread that trains; got num_workers 2"), HasSubstr("valid: 0")));
}

TEST(Queue, KeepsCopiesOfWhatIsPutIn) {
  Queue queue;
  auto writer = queue.writer();
  at::Tensor x = torch::zeros({1}, at::kLong);
  for (int64_t i = 0; i < 3; ++i) {
    x.fill_(i);
    writer.put({{"number", x}});
  }
  EXPECT_EQ((*queue.take(3))["number"].flatten().sum().item<int64_t>(), 3);
}

TEST(Queue, ExamplesThatCannotBeStackedStayInIt) {
  Queue queue;
  auto writer = queue.writer();
  writer.put({{"x", torch::ones({3})}});
  writer.put({{"x", torch::ones({4})}});
  EXPECT_ANY_THROW(queue.take(2));
  EXPECT_EQ(queue.size(), 2);
  EXPECT_EQ((*queue.take(1))["x"].numel(), 3);
  EXPECT_EQ((*queue.take(1))["x"].numel(), 4);
}

TEST(Queue, RefusesWritersThatAreNone) {
  Queue queue;
  EXPECT_THAT(message_of([&] { queue.add_writer(nullptr); }), HasSubstr("[data] add_writer of a queue was given no"));
  auto writer = queue.writer();
  EXPECT_THAT(message_of([&] { writer.put({{"x", at::Tensor()}}); }), HasSubstr("'x' of an example that writer 0 put"));
  auto other = std::move(writer);
  EXPECT_THAT(message_of([&] { writer.end(); }), HasSubstr("was moved from"));  // NOLINT(bugprone-use-after-move)
  other.fail(nullptr);
  EXPECT_THAT(message_of([&] { queue.take(1); }), HasSubstr("writer 0 of a queue failed without an exception"));
}

TEST(Queue, SaysThatItWaitsForAWriter) {
  testing::CapturedLog log;
  Queue queue({.timeout = 0.05});
  EXPECT_THAT(message_of([&] { queue.take(1); }), HasSubstr("of 0 writers"));
  EXPECT_THAT(log.text(), HasSubstr("a queue is read that has 0 writers; it waits for one; hint: add_writer"));
  Queue saved;
  auto first = saved.writer();
  auto second = saved.writer();
  first.put(number(1));
  second.put(number(2));
  Queue resumed({.timeout = 0.05});
  resumed.load_state_dict(saved.state_dict());
  auto only = resumed.writer();
  resumed.take(2);
  EXPECT_THAT(log.text(), HasSubstr("has 1 writer; its checkpoint has 2 writers"));
  EXPECT_THAT(message_of([&] { resumed.load_state_dict(State::map()); }), HasSubstr("is no state of a queue"));
}

TEST(Queue, AWriterMayCloseIt) {
  Queue queue;
  queue.add_writer([&](Queue::Writer& out) {
    out.put(number(0));
    queue.close();
  });
  while (queue.take(1)) {
  }
}

TEST(Queue, SaysThatAWriterIsGone) {
  Queue queue;
  auto other = queue.writer();
  {
    auto writer = queue.writer();
    writer.put(number(0));
  }
  EXPECT_EQ(values(*queue.take(4)), std::vector<int64_t>{0});  // what it wrote is not lost
  EXPECT_THAT(message_of([&] { queue.take(4); }),
              AllOf(HasSubstr("[data] a writer of a queue is gone"), HasSubstr("writer 1 after 1 example"),
                    HasSubstr("valid: end()"), HasSubstr("hint: fail(")));
}

TEST(Queue, HandsOnWhatAWriterThrows) {
  Queue queue;
  queue.add_writer([](Queue::Writer& out) {
    for (int64_t i = 0; i < 3; ++i) out.put(number(i));
    throw std::domain_error("the simulation diverges");
  });
  EXPECT_EQ(values(*queue.take(8)), count_to(3));
  for (int i = 0; i < 2; ++i) EXPECT_THROW(queue.take(8), std::domain_error);
}

TEST(Queue, ClosingEndsWritersThatWait) {
  std::atomic<bool> was_told = false;
  Queue queue({.capacity = 1});
  queue.add_writer([](Queue::Writer& out) {
    for (int64_t i = 0;; ++i) out.put(number(i));  // for ever
  });
  auto own = queue.writer();
  std::thread thread([&] {
    try {
      for (int64_t i = 0;; ++i) own.put(number(i));
    } catch (const Error& error) {
      was_told = std::string(error.what()).find("after it was closed") != std::string::npos;
    }
  });
  EXPECT_NE(queue.take(3), std::nullopt);
  queue.close();
  thread.join();
  EXPECT_TRUE(was_told);
  EXPECT_EQ(queue.take(1), std::nullopt);
}

TEST(Queue, AWriterMayOutliveIt) {
  auto queue = std::make_unique<Queue>();
  auto writer = queue->writer();
  queue.reset();
  EXPECT_THAT(message_of([&] { writer.put(number(0)); }), HasSubstr("after it was closed"));
}

TEST(Queue, IsReadByOneRank) {
  const Queue queue;
  const auto stream = queue.stream({.reader = 0, .num_readers = 2});
  EXPECT_THAT(
      message_of([&] { queue.stream({.reader = 1, .num_readers = 2}); }),
      AllOf(HasSubstr("read by one rank; got readers 0 and 1 of 2"), HasSubstr("hint: make it in the module's")));
}

TEST(Queue, GoesOnFromItsState) {
  Queue queue({.capacity = 5});
  queue.add_writer([](Queue::Writer& out) {
    for (int64_t i = out.position(); i < 30; ++i) out.put(number(i), State(10 * i));
  });
  EXPECT_EQ(values(*queue.take(7)), count_to(7));
  const State state = queue.state_dict();
  Queue resumed({.capacity = 5});
  resumed.add_writer([](Queue::Writer& out) {
    EXPECT_EQ(out.state().as_int(), 10 * (out.position() - 1));
    for (int64_t i = out.position(); i < 30; ++i) out.put(number(i), State(10 * i));
  });
  resumed.load_state_dict(state);
  const auto rest = take_all(resumed, 4);
  EXPECT_EQ(rest, take_all(queue, 4));
  EXPECT_EQ(rest.front(), 7);
  EXPECT_EQ(rest.back(), 29);
}

TEST(Queue, SavesExamplesOfAnyShape) {
  Queue queue;
  auto writer = queue.writer();
  for (int64_t i = 1; i < 4; ++i) {
    Batch example{{"value", torch::arange(i)}};
    example.set_texts("name", {std::to_string(i)});
    writer.put(std::move(example));
  }
  Queue resumed;
  resumed.load_state_dict(queue.state_dict());
  EXPECT_EQ(resumed.size(), 3);
  for (int64_t i = 1; i < 4; ++i) {
    const auto example = resumed.take(1);
    EXPECT_TRUE((*example)["value"].equal(torch::arange(i).unsqueeze(0)));
    EXPECT_EQ(example->texts("name"), std::vector<std::string>{std::to_string(i)});
  }
}

// ---- As a data set of fit

/// A simulation whose next state follows from its last.
class SimulationData : public DataModule {
 public:
  explicit SimulationData(int64_t examples, int64_t capacity = 16)
      : queue(std::make_shared<Queue>(data::QueueOptions{.capacity = capacity})) {
    queue->add_writer([examples](Queue::Writer& out) {
      int64_t value = out.state().is_null() ? 1 : out.state().as_int();
      for (int64_t i = out.position(); i < examples; ++i) {
        value = value * 16807 % 2147483647;
        const auto x = torch::arange(4, torch::kFloat).mul(static_cast<double>(value % 1000) * 0.01).sin();
        out.put({{"x", x}, {"y", x.sum(0, true)}}, State(value));
      }
    });
  }
  DataLoader train_dataloader() override { return DataLoader(queue, {.batch_size = 4}); }
  State state_dict() const override {
    State state = State::map();
    state["queue"] = queue->state_dict();
    return state;
  }
  void load_state_dict(const State& state) override { queue->load_state_dict(state.at("queue")); }

  const std::shared_ptr<Queue> queue;
};

struct Losses {
  std::vector<double> values;
  std::shared_ptr<Callback> callback() {
    return make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_end = [this](Trainer&, Module&, const StepOutput& output, const Batch&, int64_t) {
          values.push_back(output.loss().item<double>());
        }});
  }
};

std::shared_ptr<TinyModule> tiny_module() {
  seed_everything(3);
  return std::make_shared<TinyModule>(TinyOptions{.dropout = 0.2});
}

TEST(Queue, TrainsUntilItsWritersEnd) {
  Losses losses;
  TrainerOptions options = quiet(1);
  options.callbacks = {losses.callback()};
  Trainer(options).fit(tiny_module(), std::make_shared<SimulationData>(42));
  EXPECT_EQ(losses.values.size(), 11u);
}

TEST(Queue, AnErrorOfAWriterComesOutOfFit) {
  const auto queue = std::make_shared<Queue>();
  queue->add_writer([](Queue::Writer& out) {
    for (int i = 0; i < 6; ++i) out.put({{"x", torch::zeros(4)}, {"y", torch::zeros(1)}});
    throw std::domain_error("the simulation diverges");
  });
  Losses losses;
  TrainerOptions options = quiet(1);
  options.callbacks = {losses.callback()};
  Trainer trainer(options);
  EXPECT_THROW(trainer.fit(tiny_module(), DataLoader(queue, {.batch_size = 2})), std::domain_error);
}

class ResumedQueue : public ::testing::TestWithParam<int64_t> {};

TEST_P(ResumedQueue, TrainsOnToTheBit) {
  const int64_t stop = GetParam();
  const std::string root = fresh_folder("queue");
  const auto options = [&](int64_t max_steps, Losses& losses) {
    TrainerOptions result = quiet(3);
    result.limit_train_batches = int64_t{5};
    result.max_steps = max_steps;
    result.callbacks = {losses.callback()};
    return result;
  };
  Losses whole;
  const auto expected = tiny_module();
  Trainer(options(15, whole)).fit(expected, std::make_shared<SimulationData>(1000));
  ASSERT_EQ(whole.values.size(), 15u);

  Losses before;
  const auto interrupted = tiny_module();
  Trainer first(options(stop, before));
  first.fit(interrupted, std::make_shared<SimulationData>(1000));
  first.save_checkpoint(root + "/stopped");
  Losses after;
  const auto resumed = tiny_module();
  Trainer second(options(15, after));
  second.fit(resumed, std::make_shared<SimulationData>(1000), root + "/stopped");

  std::vector<double> both = before.values;
  both.insert(both.end(), after.values.begin(), after.values.end());
  EXPECT_EQ(both, whole.values);
  EXPECT_TRUE(identical(weights(*resumed), weights(*expected)));
}

INSTANTIATE_TEST_SUITE_P(After, ResumedQueue, ::testing::Values(1, 2, 3, 5, 6, 10, 12));

TEST(Queue, AFitInTheSameProgramGoesOnWithIt) {
  const std::string root = fresh_folder("queue");
  Losses whole;
  TrainerOptions options = quiet(1);
  options.callbacks = {whole.callback()};
  options.max_steps = 9;
  Trainer(options).fit(tiny_module(), std::make_shared<SimulationData>(1000));

  const auto data = std::make_shared<SimulationData>(1000);
  Losses parts;
  options.callbacks = {parts.callback()};
  options.max_steps = 4;
  Trainer first(options);
  first.fit(tiny_module(), data);
  first.save_checkpoint(root + "/stopped");
  options.max_steps = 9;
  Trainer(options).fit(tiny_module(), data, root + "/stopped");
  EXPECT_EQ(parts.values, whole.values);
}

// ---- As the source of an engine

class QueueingModule : public TinyModule {
 public:
  explicit QueueingModule(Queue& queue) : TinyModule(TinyOptions{.dropout = 0.2}), queue_(queue) {}
  void on_save_checkpoint(State& state) override { state["queue"] = queue_.state_dict(); }
  void on_load_checkpoint(const State& state) override { queue_.load_state_dict(state.at("queue")); }

 private:
  Queue& queue_;
};

TEST(Queue, AnEngineGoesOnToTheBit) {
  const std::string root = fresh_folder("queue");
  const auto run = [&](int64_t steps, const std::string& from, const std::string& to) {
    const SimulationData data(1000);
    seed_everything(3);
    const auto module = std::make_shared<QueueingModule>(*data.queue);
    TrainerOptions options = quiet(1);
    options.max_epochs = {};
    options.max_steps = steps;
    Engine engine(module, options);
    if (!from.empty()) engine.load(from);
    while (!engine.stop_requested()) engine.train_step(*data.queue->take(4));
    if (!to.empty()) engine.save(to);
    engine.close();
    return weights(*module);
  };
  const auto expected = run(12, "", "");
  run(5, "", root + "/stopped");
  EXPECT_TRUE(identical(run(12, root + "/stopped", ""), expected));
}

}  // namespace
}  // namespace levin
