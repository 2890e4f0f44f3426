/// How idle the ranks of a pipeline are, against theory, and how many micro-batches they hold: stages whose work is a
/// timed wait, on thread ranks, so that more stages than cores can be measured.
///
///   build/bin/pipeline_bubble_benchmark [steps] [schedule] [ranks]      all of 2, 4 and 8 ranks without the last two
///
/// A stage waits 20 ms forward and 40 ms backward, in the schedule interleaved in two chunks. In zero_bubble half of
/// the wait backward is in the weight gradients of linear layers of one weight, since these are what is put off: matrix
/// products wait in this program.

#include "measure.h"

#include <levin/core/comm/pipeline_schedule.h>
#include <levin/levin.h>
#include <levin/strategies/pipeline/pipeline.h>
#include <levin/strategies/pipeline/pipeline_engine.h>
#include <levin/strategies/pipeline/pipeline_trace.h>

#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using levin::ChunkCost;
using levin::PipelineAction;
using levin::PipelineEvent;
using levin::PipelineShape;
using levin::benchmarks::median;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of half a stage: forward, and each half of backward.
constexpr std::chrono::milliseconds kWait{10};
constexpr int64_t kExamples = 16;  ///< of a micro-batch

/// The gradient of a 1 x 1 weight is a product of one row with one column, and no other product here is.
void wait_for_weight_gradient(const torch::Tensor& left, const torch::Tensor& right) {
  if (left.size(0) == 1 && right.size(1) == 1 && left.size(1) > 1) std::this_thread::sleep_for(kWait);
}

torch::Tensor product(const torch::Tensor& left, const torch::Tensor& right) {
  wait_for_weight_gradient(left, right);
  return (left.unsqueeze(2) * right.unsqueeze(0)).sum(1);
}

torch::Tensor& add_product(torch::Tensor& sum, const torch::Tensor& left, const torch::Tensor& right,
                           const at::Scalar& beta, const at::Scalar& alpha) {
  return sum.mul_(beta).add_(product(left, right), alpha);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("mm", product);
  library.impl("addmm_", add_product);
}

/// x + weight, slowly.
class WaitFunction : public torch::autograd::Function<WaitFunction> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight,
                               int64_t backward_milliseconds) {
    context->saved_data["backward"] = backward_milliseconds;
    std::this_thread::sleep_for(kWait);
    return x + weight;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(context->saved_data["backward"].toInt()));
    return {gradients[0], gradients[0].sum().reshape({1}), torch::Tensor()};
  }
};

struct WaitImpl : torch::nn::Module {
  explicit WaitImpl(std::chrono::milliseconds backward_wait) : backward_milliseconds(backward_wait.count()) {
    weight = register_parameter("weight", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return WaitFunction::apply(x, weight, backward_milliseconds); }

  int64_t backward_milliseconds;
  torch::Tensor weight;
};
TORCH_MODULE(Wait);

struct WaitingOptions {
  int64_t stages = 1;
  bool with_linear = false;
  static void describe(levin::Schema<WaitingOptions>& schema) {
    schema.field("stages", &WaitingOptions::stages, "each has two waits");
    schema.field("with_linear", &WaitingOptions::with_linear, "a linear layer after each wait");
  }
};

class WaitingModule : public levin::Module {
 public:
  using Options = WaitingOptions;
  explicit WaitingModule(const Options& options) {
    levin::Sequential net;
    for (int64_t half = 0; half < 2 * options.stages; ++half) {
      net->push_back(Wait((options.with_linear ? 1 : 2) * kWait));
      if (options.with_linear) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
    }
    net_ = register_module("net", net);
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return net_->forward(batch["x"]).mean();
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::SGD>(parameters(), levin::optim::SGDOptions{.lr = 1e-3});
  }

 private:
  levin::Sequential net_{nullptr};
};

PipelineEvent::Kind kind_of(PipelineAction::Kind kind) {
  switch (kind) {
    case PipelineAction::Kind::kForward:
      return PipelineEvent::Kind::kForward;
    case PipelineAction::Kind::kBackward:
      return PipelineEvent::Kind::kBackward;
    case PipelineAction::Kind::kBackwardInput:
      return PipelineEvent::Kind::kBackwardInput;
    case PipelineAction::Kind::kBackwardWeight:
      return PipelineEvent::Kind::kBackwardWeight;
  }
  throw levin::InternalError("unknown kind of pipeline action");
}

/// What all ranks did.
struct Recording {
  std::map<int64_t, std::vector<PipelineEvent>> steps;
  std::map<int64_t, int64_t> most_held;  ///< by rank
};

class Recorder : public levin::Callback {
 public:
  /// Of the fit that runs.
  static Recording recording;

  void on_train_batch_end(levin::Trainer& trainer, levin::Module&, const levin::StepOutput&, const levin::Batch&,
                          int64_t batch_idx) override {
    if (batch_idx == 0) return;  // the shapes are found out there
    const auto* engine = dynamic_cast<const levin::Pipeline&>(trainer.strategy()).engine();
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    recording.most_held[engine->stage()] = engine->most_held();
    for (const auto& done : engine->done())
      recording.steps[batch_idx].push_back({.rank = engine->stage(),
                                            .chunk = done.action.chunk,
                                            .micro_batch = done.action.micro_batch,
                                            .kind = kind_of(done.action.kind),
                                            .begin_ns = done.from,
                                            .end_ns = done.to});
  }
};

Recording Recorder::recording;

void fit(const std::string& schedule, const PipelineShape& shape, int64_t steps) {
  const int64_t batch_size = kExamples * shape.micro_batches;
  const bool splits = schedule == "zero_bubble";
  const auto data =
      std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", torch::randn({batch_size * (steps + 1), 1})}});
  std::string balance;
  for (int64_t chunk = 0; chunk < shape.chunks(); ++chunk)
    balance += fmt::format("{}{}", chunk == 0 ? "" : ", ", (splits ? 4 : 2) / shape.chunks_per_rank);
  levin::TrainerOptions options;
  options.max_steps = steps + 1;
  options.accelerator = "cpu";
  options.devices = static_cast<int>(shape.stages);
  options.strategy = levin::Spec<levin::Strategy>(levin::Config::parse(
      fmt::format("{{name: pipeline_threads, schedule: {}, micro_batches: {}, chunks_per_rank: {}, balance: [{}]}}",
                  schedule, shape.micro_batches, shape.chunks_per_rank, balance),
      {}));
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.callbacks = {levin::make<Recorder>()};
  levin::Trainer trainer(options);
  trainer.fit(levin::make<WaitingModule>({.stages = shape.stages, .with_linear = splits}),
              levin::DataLoader(data, {.batch_size = batch_size}));
}

/// Medians over all micro-batches and steps, in seconds.
std::vector<ChunkCost> measured_costs(const Recording& recording, int64_t chunks) {
  std::map<std::pair<int64_t, PipelineEvent::Kind>, std::vector<double>> seconds;
  for (const auto& [step, events] : recording.steps)
    for (const PipelineEvent& event : events)
      seconds[{event.chunk, event.kind}].push_back(static_cast<double>(event.end_ns - event.begin_ns) * 1e-9);
  const auto cost_of = [&](int64_t chunk, PipelineEvent::Kind kind) {
    const auto found = seconds.find({chunk, kind});
    return found == seconds.end() ? 0 : median(found->second);
  };
  std::vector<ChunkCost> costs;
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    costs.push_back({.forward = cost_of(chunk, PipelineEvent::Kind::kForward),
                     .backward_input = cost_of(chunk, PipelineEvent::Kind::kBackward) +
                                       cost_of(chunk, PipelineEvent::Kind::kBackwardInput),
                     .backward_weight = cost_of(chunk, PipelineEvent::Kind::kBackwardWeight)});
  return costs;
}

ChunkCost mean_of(const std::vector<ChunkCost>& costs) {
  ChunkCost mean{.forward = 0, .backward_input = 0, .backward_weight = 0};
  const auto count = static_cast<double>(costs.size());
  for (const ChunkCost& cost : costs) {
    mean.forward += cost.forward / count;
    mean.backward_input += cost.backward_input / count;
    mean.backward_weight += cost.backward_weight / count;
  }
  return mean;
}

/// Prints a row; returns by how much the bubble is off theory.
double measure(const std::string& schedule, const PipelineShape& shape, int64_t steps) {
  Recorder::recording = {};
  fit(schedule, shape, steps);
  Recording& recording = Recorder::recording;
  std::vector<double> bubbles;
  for (const auto& [step, events] : recording.steps) bubbles.push_back(levin::measured_bubble(events).mean);
  const double measured = median(bubbles);
  const double least = *std::min_element(bubbles.begin(), bubbles.end());
  const std::vector<ChunkCost> costs = measured_costs(recording, shape.chunks());
  const ChunkCost mean = mean_of(costs);
  const double theory = levin::theoretical_bubble(schedule, shape, mean);
  const auto actions = levin::pipeline_schedule(schedule, shape);
  const double simulated = levin::simulate(actions, shape, costs).bubble();
  std::printf("%-12s %5d %13d   %5.1f %5.1f %5.1f   %8.4f %8.4f   %8.4f %8.4f   %8d %8d\n", schedule.c_str(),
              static_cast<int>(shape.stages), static_cast<int>(shape.micro_batches), 1e3 * mean.forward,
              1e3 * mean.backward_input, 1e3 * mean.backward_weight, measured, least, theory, simulated,
              static_cast<int>(recording.most_held[0]),
              static_cast<int>(levin::most_in_flight(actions[0], shape).total));
  std::fflush(stdout);
  return std::abs(measured - theory);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  const int64_t steps = argc > 1 ? std::stoll(argv[1]) : 3;
  const auto schedules = argc > 2 ? std::vector<std::string>{argv[2]} : levin::pipeline_schedule_names();
  const auto all_ranks = argc > 3 ? std::vector<int64_t>{std::stoll(argv[3])} : std::vector<int64_t>{2, 4, 8};
  std::printf(
      "F, B, W: ms that forward, backward (of the input) and backward of the weights of a chunk took, mean of the "
      "chunks' medians\nbubble: part of a step that ranks are idle, median and least of %d steps, in theory, and on "
      "paper with each chunk's times\nheld: the most micro-batches on rank 0, and what the schedule says\n"
      "schedule     ranks micro-batches       F     B     W     median    least     theory on paper       held "
      "schedule\n",
      static_cast<int>(steps));
  double most_off = 0;
  for (const std::string& schedule : schedules)
    for (const int64_t ranks : all_ranks)
      for (int64_t micro_batches = ranks; micro_batches <= 8 * ranks; micro_batches *= 2)
        most_off = std::max(most_off, measure(schedule,
                                              {.stages = ranks,
                                               .micro_batches = micro_batches,
                                               .chunks_per_rank = schedule == "interleaved" ? 2 : 1},
                                              steps));
  std::printf("off theory by at most %.4f of a step, by the medians\n", most_off);
  return 0;
}
