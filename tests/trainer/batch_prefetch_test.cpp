#include <levin/core/connectors/batch_prefetch.h>

#include <levin/core/base/seed.h>
#include <levin/core/data/generator.h>
#include <levin/core/trainer/module_context.h>

#include <tests/support/tiny.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::tiny_dataset;
using testing::weights;

/// What a fake side stream was asked for.
struct Requests {
  std::function<bool(const at::Tensor&)> can_copy = [](const at::Tensor&) { return true; };
  bool out_of_memory = false;
  int tries = 0;                   ///< calls of copy()
  std::vector<at::Tensor> copies;  ///< all that were made
  int waited = 0;                  ///< for how many of them

  bool made(const at::Tensor& tensor) const {
    return std::any_of(copies.begin(), copies.end(), [&](const at::Tensor& copy) { return copy.is_same(tensor); });
  }
};

/// Copies on the host. A copy holds something else until somebody waits for it, and then what its source held when the
/// copy was started, as that of a fast device would.
class FakeCopyStream : public CopyStream {
 public:
  explicit FakeCopyStream(std::shared_ptr<Requests> requests) : requests_(std::move(requests)) {}
  ~FakeCopyStream() override { EXPECT_TRUE(under_way_.empty()) << "copies were freed while they were being filled"; }

  bool can_copy(const at::Tensor& host) const override { return requests_->can_copy(host); }

  std::vector<at::Tensor> copy(const std::vector<at::Tensor>& host) override {
    EXPECT_TRUE(under_way_.empty()) << "more than one batch is ahead";
    ++requests_->tries;
    if (requests_->out_of_memory) TORCH_CHECK_WITH(OutOfMemoryError, false, "no room");
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : host) {
      copies.push_back(at::full_like(tensor, 77));
      under_way_.push_back({copies.back(), tensor.clone()});
      requests_->copies.push_back(copies.back());
    }
    return copies;
  }

  void wait(const at::Tensor& copy) override {
    const auto found =
        std::find_if(under_way_.begin(), under_way_.end(), [&](const auto& pair) { return pair.first.is_same(copy); });
    ASSERT_NE(found, under_way_.end());
    found->first.copy_(found->second);
    under_way_.erase(found);
    ++requests_->waited;
  }

 private:
  std::shared_ptr<Requests> requests_;
  std::vector<std::pair<at::Tensor, at::Tensor>> under_way_;  ///< copies with what they will hold
};

class BatchPrefetchTest : public ::testing::Test {
 protected:
  const std::shared_ptr<Requests> requests_ = std::make_shared<Requests>();
  BatchPrefetch prefetch_{std::make_unique<FakeCopyStream>(requests_)};
  const at::Tensor x_ = at::arange(6, at::kFloat).reshape({2, 3});
  const at::Tensor y_ = at::arange(2, at::kLong);
};

TEST_F(BatchPrefetchTest, GivesTheCopyOfAnUnchangedTensorOnce) {
  prefetch_.start({{"x", x_}, {"y", y_}});
  EXPECT_EQ(requests_->waited, 0);
  const at::Tensor y = prefetch_.take(y_);
  const at::Tensor x = prefetch_.take(x_);
  ASSERT_TRUE(requests_->made(x));
  ASSERT_TRUE(requests_->made(y));
  EXPECT_TRUE(x.equal(x_));
  EXPECT_TRUE(y.equal(y_));
  EXPECT_FALSE(prefetch_.take(x_).defined());
}

TEST_F(BatchPrefetchTest, MissesATensorThatReplacesAnother) {
  prefetch_.start({{"x", x_}});
  EXPECT_FALSE(prefetch_.take(x_.clone()).defined());
  EXPECT_FALSE(prefetch_.take(x_.detach()).defined());
}

TEST_F(BatchPrefetchTest, MissesATensorThatChanged) {
  const std::vector<std::function<void(at::Tensor)>> changes = {
      [](at::Tensor x) { x.add_(1); },
      [](at::Tensor x) { x.view({-1})[0].fill_(5); },
      [](at::Tensor x) { x.detach().zero_(); },
      [](at::Tensor x) { x.unsqueeze_(0); },
      [](at::Tensor x) { x.set_data(x + 1); },
      [](at::Tensor x) { x.set_data(x.detach().view({-1})); },
      [](at::Tensor x) {
        x.mutable_data_ptr<float>()[0] = 5;
        torch::autograd::impl::bump_version(x);
      },
      [](at::Tensor x) {
        const c10::InferenceMode inference;
        x.mul_(2);
      },
      [](at::Tensor x) {
        const at::NoGradGuard no_grad;
        x.mul_(2);
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    at::Tensor x = at::ones({2, 3});
    prefetch_.start({{"x", x}});
    changes[i](x);
    EXPECT_FALSE(prefetch_.take(x).defined()) << i;
    prefetch_.clear();
  }
}

TEST_F(BatchPrefetchTest, CopiesATensorThatIsTwiceInABatchTwice) {
  prefetch_.start({{"x", x_}, {"same", x_}});
  const at::Tensor first = prefetch_.take(x_);
  const at::Tensor second = prefetch_.take(x_);
  ASSERT_TRUE(first.defined() && second.defined());
  EXPECT_FALSE(first.is_alias_of(second));
  EXPECT_TRUE(first.equal(x_));
  EXPECT_TRUE(second.equal(x_));
}

TEST_F(BatchPrefetchTest, LeavesOutWhatCannotBeCopiedAhead) {
  at::Tensor made_in_inference_mode;
  {
    const c10::InferenceMode inference;
    made_in_inference_mode = at::ones({2});
  }
  const at::Tensor pageable = at::ones({2});
  requests_->can_copy = [&](const at::Tensor& tensor) { return !tensor.is_same(pageable); };
  const Batch batch{{"undefined", at::Tensor()},
                    {"pageable", pageable},
                    {"of_a_graph", at::ones({2}, at::kFloat).requires_grad_()},
                    {"sparse", at::eye(2).to_sparse()},
                    {"inference", made_in_inference_mode},
                    {"y", y_}};
  prefetch_.start(batch);
  ASSERT_EQ(requests_->copies.size(), 1u);
  for (const auto& [name, tensor] : batch.items()) {
    if (!tensor.defined() || name == "y") continue;
    EXPECT_FALSE(prefetch_.take(tensor).defined()) << name;
  }
  EXPECT_TRUE(prefetch_.take(y_).equal(y_));
  prefetch_.start({{"pageable", pageable}});
  prefetch_.start({});
  EXPECT_EQ(requests_->tries, 1);
}

TEST_F(BatchPrefetchTest, DropsABatchThatIsNotTaken) {
  prefetch_.start({{"x", x_}});
  prefetch_.start({{"y", y_}});
  EXPECT_EQ(requests_->waited, 1);
  EXPECT_FALSE(prefetch_.take(x_).defined());
  prefetch_.clear();
  EXPECT_EQ(requests_->waited, 2);
  EXPECT_FALSE(prefetch_.take(y_).defined());
  prefetch_.start({{"x", x_}});  // dropped by the destructor, which the fake sees
}

TEST_F(BatchPrefetchTest, HoldsTheTensorUntilItIsTakenOrDropped) {
  at::Tensor x = at::ones({2});
  const c10::weak_intrusive_ptr<c10::TensorImpl> host(x.getIntrusivePtr());
  prefetch_.start({{"x", std::exchange(x, at::Tensor())}});
  EXPECT_FALSE(host.expired());
  prefetch_.clear();
  EXPECT_TRUE(host.expired());
}

TEST_F(BatchPrefetchTest, DoesNotCopyAgainWhatAHookReplacesInEveryBatch) {
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = at::ones({2}), y = at::ones({3});
    prefetch_.start({{"x", x}, {"y", y}});
    EXPECT_TRUE(prefetch_.take(y).defined());
  }
  EXPECT_EQ(requests_->copies.size(), 4u);  // x once, y three times
  prefetch_.clear();
  prefetch_.start({{"x", x_}});
  EXPECT_TRUE(prefetch_.take(x_).defined());
}

TEST_F(BatchPrefetchTest, GoesOnWithoutRoomOnTheDevice) {
  requests_->out_of_memory = true;
  prefetch_.start({{"x", x_}});
  EXPECT_FALSE(prefetch_.take(x_).defined());
  prefetch_.start({{"x", x_}});
  EXPECT_EQ(requests_->tries, 1);
  requests_->out_of_memory = false;
  prefetch_.clear();
  prefetch_.start({{"x", x_}});
  EXPECT_TRUE(prefetch_.take(x_).equal(x_));
}

TEST_F(BatchPrefetchTest, IsOffOnACpu) { EXPECT_EQ(BatchPrefetch::for_device(at::Device(at::kCPU)), nullptr); }

// ---- In the loops, where a fake takes the place of the nullptr of a CPU.

struct PrefetchingOptions {
  bool prefetch = true;
  double dropout = 0.3;
  std::string hook;
  static void describe(Schema<PrefetchingOptions>& schema) {
    schema.field("prefetch", &PrefetchingOptions::prefetch, "copies ahead");
    schema.field("dropout", &PrefetchingOptions::dropout, "dropout probability");
    schema.field("hook", &PrefetchingOptions::hook,
                 "what on_before_batch_transfer does with x: '', scale, replace or pointer");
  }
};

class PrefetchingModule : public testing::TinyModule {
 public:
  using Options = PrefetchingOptions;
  explicit PrefetchingModule(const Options& options) : TinyModule({.dropout = options.dropout}), options_(options) {}

  const std::shared_ptr<Requests> requests = std::make_shared<Requests>();
  DataConnector* data = nullptr;
  std::vector<std::string> journal;
  int fails_in_batch = -1;
  int ends_epoch_in_batch = -1;

  void setup(Stage) override {
    data = &dynamic_cast<ModuleContext&>(*attached_runtime()).data();
    if (options_.prefetch)
      data->set_prefetch(std::make_unique<BatchPrefetch>(std::make_unique<FakeCopyStream>(requests)));
  }
  Batch on_before_batch_transfer(Batch batch, int64_t) override {
    journal.push_back("before " + sum(batch));
    for (const auto& [name, tensor] : batch.items()) EXPECT_FALSE(requests->made(tensor)) << name;
    if (options_.hook == "scale") batch["x"].mul_(0.5);
    if (options_.hook == "replace") batch["x"] = batch["x"] * at::rand({});
    if (options_.hook == "pointer") {
      *batch["x"].mutable_data_ptr<float>() = 0.5F;
      return batch;
    }
    return TinyModule::on_before_batch_transfer(std::move(batch), 0);
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    std::string early;
    for (const auto& [name, tensor] : batch.items())
      if (requests->made(tensor)) early += name;
    early_.push_back(early);
    journal.push_back("after " + sum(batch));
    return batch;
  }
  bool on_train_batch_start(const Batch&, int64_t batch_idx) override {
    journal.push_back("start");
    return batch_idx != ends_epoch_in_batch;
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { journal.push_back("end"); }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    journal.push_back("step");
    if (batch_idx == fails_in_batch) throw std::runtime_error("a mistake in batch " + std::to_string(batch_idx));
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    journal.push_back("validation step");
    return TinyModule::validation_step(batch, batch_idx);
  }

  /// Of each batch so far, the names of the tensors that were copied ahead.
  std::vector<std::string> take_early() { return std::exchange(early_, {}); }

 private:
  static std::string sum(const Batch& batch) { return std::to_string(batch["x"].sum().item<double>()); }
  Options options_;
  std::vector<std::string> early_;
};

/// Five batches, with a thread: what is made in inference mode is not copied ahead.
DataLoader loader(int64_t examples = 40, bool shuffle = true) {
  return DataLoader(tiny_dataset(examples), {.batch_size = 8, .shuffle = shuffle, .num_workers = 1});
}

using Early = std::vector<std::string>;

struct Fit {
  std::vector<at::Tensor> weights;
  MetricMap metrics;
  std::vector<std::string> journal;
  Early early;
};

Fit fit(const PrefetchingOptions& options, const std::function<void(TrainerOptions&)>& configure = {}) {
  seed_everything(7);
  auto module = make<PrefetchingModule>(options);
  TrainerOptions trainer_options = quiet(2);
  if (configure) configure(trainer_options);
  Trainer trainer(trainer_options);
  trainer.fit(module, loader(), loader(16, false));
  return {weights(*module), trainer.callback_metrics(), module->journal, module->take_early()};
}

TEST(PrefetchingLoops, TrainAsWithoutIt) {
  for (const char* hook : {"", "scale", "replace"}) {
    const Fit expected = fit({.prefetch = false, .hook = hook});
    const Fit got = fit({.prefetch = true, .hook = hook});
    EXPECT_TRUE(identical(got.weights, expected.weights)) << hook;
    EXPECT_EQ(got.metrics, expected.metrics) << hook;
    EXPECT_EQ(got.journal, expected.journal) << hook;
    EXPECT_EQ(expected.early, Early(14)) << hook;
    const std::string most = *hook == '\0' ? "xy" : "y";
    const Early epoch = {"", most, most, most, most, /*validation*/ "", most};
    Early both = epoch;
    both.insert(both.end(), epoch.begin(), epoch.end());
    EXPECT_EQ(got.early, both) << hook;
  }
}

TEST(PrefetchingLoops, AHookThatMayWriteThroughAPointerGetsOrdinaryCopies) {
  const Fit expected = fit({.prefetch = false, .hook = "pointer"});
  const Fit got = fit({.prefetch = true, .hook = "pointer"});
  EXPECT_TRUE(identical(got.weights, expected.weights));
  EXPECT_EQ(got.early, Early(14));
}

TEST(PrefetchingLoops, TrainOnThreadRanksAsWithoutIt) {
  const auto on_two = [](TrainerOptions& options) {
    options.strategy = "ddp_threads";
    options.devices = 2;
  };
  const Fit expected = fit({.prefetch = false}, on_two);
  const Fit got = fit({.prefetch = true}, on_two);
  EXPECT_TRUE(identical(got.weights, expected.weights));
  EXPECT_EQ(got.metrics, expected.metrics);
  EXPECT_EQ(std::count(got.early.begin(), got.early.end(), "xy"), 4);
}

TEST(PrefetchingLoops, DropTheTrainingBatchBeforeAValidation) {
  const auto often = [](TrainerOptions& options) {
    options.val_check_interval = 2;
    options.max_epochs = 1;
  };
  const Fit expected = fit({.prefetch = false}, often);
  const Fit got = fit({.prefetch = true}, often);
  EXPECT_TRUE(identical(got.weights, expected.weights));
  EXPECT_EQ(got.early, (Early{"", "xy", /*validation*/ "", "xy", "", "xy", /*validation*/ "", "xy", ""}));
}

TEST(PrefetchingLoops, StopAtLimits) {
  const auto limits = [](TrainerOptions& options) {
    options.limit_train_batches = 3;
    options.limit_val_batches = 1;
    options.max_epochs = 1;
  };
  EXPECT_EQ(fit({}, limits).early, (Early{"", "xy", "xy", /*validation*/ ""}));
}

TEST(PrefetchingLoops, TestAndPredictAsWithoutIt) {
  const auto run = [](bool prefetch) {
    seed_everything(7);
    auto module = make<PrefetchingModule>({.prefetch = prefetch});
    Trainer trainer(quiet(1));
    const auto metrics = trainer.test(module, {loader(), loader(16)});
    EXPECT_EQ(module->take_early(), prefetch ? (Early{"", "xy", "xy", "xy", "xy", "", "xy"}) : Early(7));
    auto predictions = trainer.predict(module, loader(40, false));
    EXPECT_EQ(module->take_early(), prefetch ? (Early{"", "xy", "xy", "xy", "xy"}) : Early(5));
    return std::pair(metrics, Batch::concatenate(predictions.at(0))["y"]);
  };
  const auto [expected_metrics, expected] = run(false);
  const auto [metrics, predictions] = run(true);
  EXPECT_EQ(metrics, expected_metrics);
  EXPECT_TRUE(predictions.equal(expected));
}

TEST(PrefetchingLoops, ResumeInsideAnEpochToTheBit) {
  const std::string path = testing::fresh_folder("prefetch") + "/c";
  const auto train = [&](int64_t steps, const std::string& ckpt) {
    seed_everything(7);
    auto module = make<PrefetchingModule>({.hook = "replace"});
    TrainerOptions options = quiet(2);
    options.max_steps = steps;
    Trainer trainer(options);
    trainer.fit(module, loader(), {}, ckpt);
    if (steps == 3) trainer.save_checkpoint(path);
    return weights(*module);
  };
  const auto whole = train(10, "");
  train(3, "");
  EXPECT_TRUE(identical(train(10, path), whole));
}

TEST(PrefetchingLoops, FreeWhatIsAheadWhenAStepFails) {
  auto module = make<PrefetchingModule>({});
  module->fails_in_batch = 2;
  Trainer trainer(quiet(1));
  try {
    trainer.fit(module, loader());
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a mistake in batch 2"));
  }
  EXPECT_FALSE(module->data->prefetches());
  EXPECT_EQ(module->requests->copies.size(), 6u);  // of batches 1, 2 and 3
  EXPECT_EQ(module->requests->waited, 6);
  // And the trainer goes on.
  module->fails_in_batch = -1;
  trainer.fit(module, loader());
  EXPECT_FALSE(module->data->prefetches());
}

TEST(PrefetchingLoops, FreeWhatIsAheadWhenAnEpochEndsEarly) {
  class Watching : public PrefetchingModule {
   public:
    using PrefetchingModule::PrefetchingModule;
    void on_train_epoch_end() override {
      EXPECT_EQ(requests->copies.size(), 6u);
      EXPECT_EQ(requests->waited, 6);
    }
  };
  auto module = std::make_shared<Watching>(PrefetchingOptions{});
  module->ends_epoch_in_batch = 2;
  Trainer trainer(quiet(1));
  trainer.fit(module, loader());
  EXPECT_EQ(module->requests->waited, 6);
}

TEST(PrefetchingLoops, GiveAnOwnTransferTheTensorsOfTheHost) {
  class OwnTransfer : public PrefetchingModule {
   public:
    using PrefetchingModule::PrefetchingModule;
    Batch transfer_batch_to_device(Batch batch, const at::Device&, int64_t) override {
      for (const auto& [name, tensor] : batch.items()) EXPECT_FALSE(requests->made(tensor)) << name;
      return batch;
    }
  };
  auto module = std::make_shared<OwnTransfer>(PrefetchingOptions{});
  Trainer trainer(quiet(1));
  trainer.fit(module, loader());
  EXPECT_EQ(module->requests->tries, 1);  // nobody took the copies, so no more are made
}

}  // namespace
}  // namespace levin
