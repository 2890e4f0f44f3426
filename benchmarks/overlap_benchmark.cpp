/// How much of slow communication disappears behind backward: milliseconds a step of `ddp_threads` whose gradients
/// cross a wire of a given speed, against the computation alone and the wire alone.
///
///   build/bin/overlap_benchmark [GB/s]     default: as slow as the computation
///
/// The wire is a communication hook: buckets queue for it, occupy it for their bytes, and are then averaged as ever.

#include "measure.h"

#include <levin/levin.h>
#include <levin/strategies/ddp/ddp.h>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::seconds_since;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

double bytes_per_second = 1e9;
double milliseconds_a_step = 0;

/// Carries one bucket at a time.
class Wire {
 public:
  ~Wire() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void carry(double bytes, std::function<void()> arrived) {
    {
      const std::lock_guard lock(mutex_);
      queue_.emplace_back(std::chrono::duration<double>(bytes / bytes_per_second), std::move(arrived));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto [time, arrived] = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(time);
      arrived();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::chrono::duration<double>, std::function<void()>>> queue_;
  bool closed_ = false;
  std::thread thread_{[this] { run(); }};
};

class SlowHook : public c10d::CppCommHookInterface<Group> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    at::Tensor gradients = bucket.getBufferRef();
    wire_.carry(static_cast<double>(gradients.nbytes()), [this, done, gradients] {
      std::vector<at::Tensor> tensors = {gradients.div_(state_->getSize())};
      state_->allreduce(tensors)->wait();
      done->markCompleted(tensors);
    });
    return done;
  }

 private:
  Wire wire_;
};

class SlowDdp : public levin::Ddp {
 public:
  using Ddp::Ddp;
  std::string name() const override { return "slow_ddp"; }

 protected:
  std::unique_ptr<c10d::CommHookInterface> communication_hook(const Group& group) override {
    return std::make_unique<SlowHook>(group);
  }
};

constexpr int64_t kWidth = 1024;
constexpr int64_t kLayers = 10;

class Net : public levin::Module {
 public:
  Net() {
    for (int64_t i = 0; i < kLayers; ++i) {
      net_->push_back(torch::nn::Linear(kWidth, kWidth));
      net_->push_back(torch::nn::ReLU());
    }
    register_module("net", net_);
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return net_(batch["x"]).square().mean();
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return levin::OptimizerConfig{
        .optimizer = std::make_shared<levin::optim::SGD>(parameters(), levin::optim::SGDOptions{.lr = 0.01})};
  }

 private:
  levin::Sequential net_{levin::SequentialImpl()};
};

class StepTimer : public levin::Callback {
 public:
  void on_train_batch_start(levin::Trainer& trainer, levin::Module&, const levin::Batch&, int64_t) override {
    if (trainer.global_step() == kWarmUp) started_ = Clock::now();
  }
  void on_train_end(levin::Trainer& trainer, levin::Module&) override {
    if (!trainer.is_global_zero()) return;
    milliseconds_a_step = 1e3 * seconds_since(started_) / static_cast<double>(trainer.global_step() - kWarmUp);
  }

 private:
  static constexpr int64_t kWarmUp = 5;
  Clock::time_point started_;
};

double step_time(const std::string& strategy) {
  auto data = std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", torch::randn({64 * 64, kWidth})}});
  levin::TrainerOptions options;
  options.max_steps = 35;
  options.accelerator = "cpu";
  options.devices = 2;
  options.strategy =
      levin::Spec<levin::Strategy>(levin::Config::parse("{name: " + strategy + ", bucket_cap_mb: 4}", {}));
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.callbacks = {levin::make<StepTimer>()};
  levin::Trainer trainer(options);
  trainer.fit(levin::make<Net>(), levin::DataLoader(data, {.batch_size = 64}));
  return milliseconds_a_step;
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::registries().strategies.add<SlowDdp>("slow_ddp");
  constexpr double kBytes = kLayers * (kWidth * kWidth + kWidth) * 4.0;
  const double compute = step_time("ddp_threads");
  bytes_per_second = argc > 1 ? std::stod(argv[1]) * 1e9 : kBytes / (compute / 1000);
  const double wire = 1000 * kBytes / bytes_per_second;
  const double both = step_time("slow_ddp, start_method: thread");
  std::printf(
      "computation %.1f ms, wire %.1f ms: step %.1f ms (sum %.1f, larger one %.1f; %.0f %% of the smaller one "
      "hidden)\n",
      compute, wire, both, compute + wire, std::max(compute, wire),
      100 * (compute + wire - both) / std::min(compute, wire));
  return 0;
}
