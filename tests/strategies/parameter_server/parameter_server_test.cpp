#include "tests/support/eventually.h"
#include "tests/support/run_program.h"
#include "tests/support/tiny.h"
#include "tests/support/tree.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/optim/sgd.h>
#include <levin/strategies/parameter_server/parameter_server.h>
#include <levin/strategies/parameter_server/served_parameters.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_dataset;
using testing::TinyModule;

constexpr int64_t kExamples = 96;
constexpr int64_t kBatch = 4;
constexpr int64_t kBatches = kExamples / kBatch;

struct WorkedOptions {
  double slow = 0;
  bool manual = false;
  static void describe(Schema<WorkedOptions>& schema) {
    schema.field("slow", &WorkedOptions::slow, "seconds that a step of the last rank takes longer");
    schema.field("manual", &WorkedOptions::manual, "manual optimization");
  }
};

/// A tiny module under SGD with momentum and a schedule of each step.
class Worked : public TinyModule {
 public:
  using Options = WorkedOptions;
  explicit Worked(const Options& options) : TinyModule({}), worked_(options) {
    automatic_optimization = !options.manual;
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (trainer().global_rank() == trainer().world_size() - 1)
      std::this_thread::sleep_for(std::chrono::duration<double>(worked_.slow));
    return TinyModule::training_step(batch, batch_idx);
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{
        .optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.02, .momentum = 0.5}),
        .scheduler = {.name = "cosine", .interval = Interval::kStep}};
  }

 private:
  WorkedOptions worked_;
};

TrainerOptions options_of(const std::string& strategy, int64_t ranks, int64_t epochs) {
  TrainerOptions options = quiet(epochs);
  options.devices = ranks;
  options.precision = "64-true";
  options.strategy = Spec<Strategy>(Config::parse("{name: parameter_server_threads, " + strategy + "}", {}));
  return options;
}

DataLoader loader() { return DataLoader(tiny_dataset(kExamples), {.batch_size = kBatch}); }

/// Holds two workers before their first batch until both have one: on a busy machine the thread that starts later would
/// get none.
std::shared_ptr<Callback> both_take_a_batch() {
  const auto taken = std::make_shared<std::array<std::atomic<bool>, 2>>();
  return make<LambdaCallback>({.on_train_batch_start = [taken](Trainer& trainer, Module&, const Batch&, int64_t) {
    taken->at(static_cast<size_t>(trainer.global_rank())) = true;
    EXPECT_TRUE(testing::eventually([&] { return taken->at(0) && taken->at(1); }));
  }});
}

struct Update {
  int64_t worker = 0;
  int64_t epoch = 0;
  int64_t batch = 0;
};

std::vector<Update> read_log(const std::string& path) {
  std::vector<Update> updates;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::vector<int64_t> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',') && cells.size() < 5;) cells.push_back(std::stoll(cell));
    updates.push_back({.worker = cells.at(1), .epoch = cells.at(3), .batch = cells.at(4)});
  }
  return updates;
}

std::string to_json(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous().view({-1});
  std::vector<std::string> values;
  for (int64_t i = 0; i < flat.numel(); ++i) values.push_back(fmt::format("{:.17g}", flat[i].item<double>()));
  return fmt::format("{{\"shape\": [{}], \"values\": [{}]}}", fmt::join(tensor.sizes(), ", "), fmt::join(values, ", "));
}

using Named = std::map<std::string, at::Tensor>;

std::string to_json(const Named& tensors) {
  std::vector<std::string> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back(fmt::format("\"{}\": {}", name, to_json(tensor)));
  return "{" + join(entries) + "}";
}

Named named_weights(Module& module) {
  Named weights;
  for (const auto& [name, parameter] : named_unique_parameters(module))
    weights[name] = parameter.detach().to(at::kDouble).clone();
  return weights;
}

/// What replay.py says: the largest difference from what PyTorch gets when it does the same updates in the same order.
double replay(const std::string& folder, Module& module, int64_t servers, double delay_compensation, const Named& start,
              const Named& momentum = {}) {
  std::vector<std::string> server_of;
  std::vector<std::string> logs;
  for (int64_t server = 0; server < servers; ++server) {
    const ServedParameters served(module, servers, server, false);
    for (const auto& [name, parameter, part, is_copy] : served.entries())
      if (part.local_shard().numel() > 0) server_of.push_back(fmt::format("\"{}\": {}", name, server));
    logs.push_back(fmt::format("\"{}/server-{}.csv\"", folder, server));
  }
  const Batch data = tiny_dataset(kExamples)->get_batch(
      [] {
        std::vector<int64_t> all(kExamples);
        for (int64_t i = 0; i < kExamples; ++i) all[static_cast<size_t>(i)] = i;
        return all;
      }(),
      *std::make_unique<data::Generator>(0, 0, 0));
  std::ofstream(folder + "/run.json") << fmt::format(
      R"({{"start": {}, "end": {}, {} "x": {}, "y": {}, "server_of": {{{}}}, "logs": [{}], "batch_size": {}, )"
      R"("momentum": 0.5, "delay_compensation": {}}})",
      to_json(start), to_json(named_weights(module)),
      momentum.empty() ? "" : fmt::format("\"end_momentum\": {},", to_json(momentum)), to_json(data["x"]),
      to_json(data["y"]), join(server_of), join(logs), kBatch, delay_compensation);
  testing::RunningProgram program({testing::torch_python(),
                                   testing::source_path("tests/strategies/parameter_server/replay.py"),
                                   folder + "/run.json"});
  const auto result = program.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  return result.status == 0 ? std::stod(result.out) : 1;
}

struct AsyncCase {
  int64_t ranks = 2;
  int64_t servers = 1;
  double delay_compensation = 0;
  std::string max_staleness = "null";
};

class AsyncReplay : public ::testing::TestWithParam<AsyncCase> {};

TEST_P(AsyncReplay, PyTorchGetsTheSameWeightsFromTheServersLogs) {
  const auto [ranks, servers, delay_compensation, max_staleness] = GetParam();
  const std::string folder = fresh_folder("parameter_server");
  seed_everything(5);
  const auto module = make<Worked>({.slow = 0.002});
  const Named start = named_weights(*module);
  Trainer trainer(options_of(fmt::format("mode: async, servers: {}, delay_compensation: {}, max_staleness: {}, "
                                         "update_log: {}",
                                         servers, delay_compensation, max_staleness, folder),
                             ranks, 3));
  trainer.fit(module, loader());
  EXPECT_EQ(trainer.global_step(), 3 * kBatches);
  std::set<std::pair<int64_t, int64_t>> batches;
  for (const Update& update : read_log(folder + "/server-0.csv")) batches.emplace(update.epoch, update.batch);
  EXPECT_EQ(batches.size(), 3 * kBatches) << "each batch of each epoch is taken by one worker";
  EXPECT_LT(replay(folder, *module, servers, delay_compensation, start), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Threads, AsyncReplay,
                         ::testing::Values(AsyncCase{}, AsyncCase{.ranks = 3, .servers = 2},
                                           AsyncCase{.ranks = 3, .servers = 2, .delay_compensation = 2},
                                           AsyncCase{.ranks = 2, .servers = 2, .max_staleness = "1"}));

TEST(ParameterServerAsync, AWorkerThatIsSlowTakesFewerBatches) {
  const std::string folder = fresh_folder("parameter_server");
  TrainerOptions options = options_of("mode: async, update_log: " + folder, 2, 1);
  options.callbacks = {both_take_a_batch()};
  Trainer trainer(options);
  trainer.fit(make<Worked>({.slow = 0.02}), loader());
  int64_t of_slow = 0;
  for (const Update& update : read_log(folder + "/server-0.csv")) of_slow += update.worker == 1 ? 1 : 0;
  EXPECT_GE(of_slow, 1);
  EXPECT_LT(of_slow, kBatches / 3);
}

TEST(ParameterServerAsync, NoWorkerIsFurtherAheadThanTheStalenessAllows) {
  const std::string folder = fresh_folder("parameter_server");
  Trainer trainer(options_of("mode: async, max_staleness: 2, update_log: " + folder, 2, 1));
  trainer.fit(make<Worked>({.slow = 0.01}), loader());
  const auto updates = read_log(folder + "/server-0.csv");
  ASSERT_EQ(std::ssize(updates), kBatches);
  std::array<int64_t, 2> done{};
  int64_t of_slow = 0;
  for (const Update& update : updates) of_slow += update.worker == 1 ? 1 : 0;
  for (const Update& update : updates) {
    ++done.at(static_cast<size_t>(update.worker));
    if (done[1] == of_slow) break;  // it is done for the epoch, and holds nobody back
    EXPECT_LE(done[0] - done[1], 3) << "two batches ahead, and the one that it was allowed to begin";
  }
  EXPECT_GE(of_slow, kBatches / 2 - 3);
}

TEST(ParameterServerAsync, ACheckpointHasTheStateOfTheServers) {
  const std::string folder = fresh_folder("parameter_server");
  seed_everything(5);
  const auto module = make<Worked>({});
  const Named start = named_weights(*module);
  TrainerOptions options = options_of("mode: async, servers: 2, update_log: " + folder, 2, 2);
  options.enable_checkpointing = true;
  options.default_root_dir = folder;
  options.callbacks = {make<ModelCheckpoint>({.save_last = true})};
  Trainer trainer(options);
  trainer.fit(module, loader());
  const std::string path = trainer.checkpoint_callback()->last_model_path();
  const State tree = read_checkpoint(path);
  const State& optimizer = tree.at("optimizers").as_list().front();
  Named momentum;
  for (const auto& [name, parameter] : named_unique_parameters(*module))
    momentum[name] = optimizer.at("parameters").at(name).at("momentum_buffer").as_tensor();
  EXPECT_LT(replay(folder, *module, 2, 0, start, momentum), 1e-12);

  // It goes on where it was, with one server, and as one device does.
  for (const char* strategy : {"{name: parameter_server_threads, mode: async}", "single_device"}) {
    TrainerOptions further = options_of("", 2, 3);
    if (std::string(strategy) == "single_device") further.devices = 1;
    further.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    const auto again = make<Worked>({});
    Trainer second(further);
    second.fit(again, loader(), {}, path);
    EXPECT_EQ(second.global_step(), 3 * kBatches) << strategy;
    EXPECT_TRUE(testing::identical(testing::weights(*again), testing::weights(*module)))
        << strategy << ": the schedule goes on where it was, at its end, at a rate of 0";
  }
}

TEST(ParameterServerAsync, AStopInsideAnEpochLeavesNoBatchOut) {
  const std::string folder = fresh_folder("parameter_server");
  // So many that they last for minutes once the end is asked for.
  constexpr int64_t kMany = 1000;
  const DataLoader many(tiny_dataset(kMany * kBatch), {.batch_size = kBatch});
  TrainerOptions options = options_of("mode: async, update_log: " + folder + "/first", 2, 1);
  options.enable_checkpointing = true;
  options.default_root_dir = folder;
  options.callbacks = {make<ModelCheckpoint>({.save_last = true}),
                       make<LambdaCallback>({.on_train_batch_end = [](Trainer& trainer, Module&, const StepOutput&,
                                                                      const Batch&, int64_t batch_idx) {
                         if (batch_idx < 5) return;
                         trainer.request_stop("enough for now");
                         // A worker that is alone on a busy machine would else have done the rest before it hears of
                         // it.
                         std::this_thread::sleep_for(std::chrono::milliseconds(200));
                       }})};
  Trainer trainer(options);
  trainer.fit(make<Worked>({.slow = 0.03}), many);
  const auto first = read_log(folder + "/first/server-0.csv");
  EXPECT_EQ(trainer.global_step(), std::ssize(first));
  ASSERT_LT(std::ssize(first), kMany);
  TrainerOptions rest = options_of("mode: async, update_log: " + folder + "/rest", 2, 1);
  Trainer second(rest);
  second.fit(make<Worked>({}), many, {}, trainer.checkpoint_callback()->last_model_path());
  EXPECT_EQ(second.global_step(), kMany);
  std::set<int64_t> batches;
  for (const auto& log : {first, read_log(folder + "/rest/server-0.csv")})
    for (const Update& update : log) EXPECT_TRUE(batches.insert(update.batch).second) << update.batch;
  EXPECT_EQ(std::ssize(batches), kMany);
}

TEST(ParameterServerAsync, MaxStepsCountsThoseOfAllWorkers) {
  const std::string folder = fresh_folder("parameter_server");
  TrainerOptions options = options_of("mode: async, update_log: " + folder, 3, 5);
  options.max_steps = kBatches + 7;
  Trainer trainer(options);
  trainer.fit(make<Worked>({}), loader());
  EXPECT_EQ(trainer.global_step(), kBatches + 7);
  EXPECT_EQ(std::ssize(read_log(folder + "/server-0.csv")), kBatches + 7);
}

TEST(ParameterServerAsync, ATrainerIsCalledAgain) {
  const std::string folder = fresh_folder("parameter_server");
  Trainer trainer(options_of("mode: async, servers: 2, update_log: " + folder, 3, 1));
  const auto module = make<Worked>({});
  for (int call = 0; call < 3; ++call) {
    trainer.fit(module, loader());
    const auto updates = read_log(folder + "/server-1.csv");
    std::set<int64_t> batches;
    for (const Update& update : updates) batches.insert(update.batch);
    EXPECT_EQ(std::ssize(updates), kBatches) << "of this call";
    EXPECT_EQ(std::ssize(batches), kBatches);
  }
}

TEST(ParameterServerAsync, GradientsAreClippedAtTheWorker) {
  seed_everything(5);
  const auto module = make<Worked>({});
  const auto start = testing::weights(*module);
  TrainerOptions options = options_of("mode: async", 2, 1);
  options.gradient_clip_val = 1e-12;
  Trainer trainer(options);
  trainer.fit(module, loader());
  const auto end = testing::weights(*module);
  for (size_t i = 0; i < end.size(); ++i)
    EXPECT_LT((end[i] - start[i].to(at::kDouble)).abs().max().item<double>(), 1e-9);
}

TEST(ParameterServerAsync, TheErrorOfOneWorkerEndsAll) {
  for (const int64_t wrong : {0, 1}) {
    TrainerOptions options = options_of("mode: async", 2, 1);
    options.callbacks = {both_take_a_batch(),
                         make<LambdaCallback>({.on_train_batch_end = [wrong](Trainer& trainer, Module&,
                                                                             const StepOutput&, const Batch&, int64_t) {
                           if (trainer.global_rank() == wrong) throw Error("test", "a worker's own mistake");
                         }})};
    Trainer trainer(options);
    try {
      trainer.fit(make<Worked>({}), loader());
      FAIL() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("a worker's own mistake"));
    }
  }
}

// ---- What is refused

std::string message_of(const TrainerOptions& options, const WorkedOptions& module = {}) {
  try {
    Trainer trainer(options);
    trainer.fit(make<Worked>(module), loader());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ParameterServerErrors, ServersAreRanksAndHaveParameters) {
  EXPECT_THAT(message_of(options_of("servers: 3", 2, 1)),
              HasSubstr("parameter_server.servers is 3, and the job has 2 ranks"));
  EXPECT_THAT(message_of(options_of("servers: 5", 5, 1)),
              HasSubstr("parameter_server.servers is 5, and the module has 4 parameter tensors"));
  EXPECT_THAT(message_of(options_of("servers: 0", 2, 1)), HasSubstr("at least 1"));
  EXPECT_THAT(message_of(options_of("mode: lazy", 2, 1)), HasSubstr("sync, async"));
}

TEST(ParameterServerErrors, OptionsOfAsyncAreRefusedInSync) {
  EXPECT_THAT(message_of(options_of("max_staleness: 2", 2, 1)),
              HasSubstr("parameter_server.max_staleness is an option of mode: async"));
  EXPECT_THAT(message_of(options_of("delay_compensation: 0.1", 2, 1)),
              HasSubstr("parameter_server.delay_compensation"));
  EXPECT_THAT(message_of(options_of("update_log: x", 2, 1)), HasSubstr("parameter_server.update_log"));
}

TEST(ParameterServerErrors, AsyncSaysWhatItCannotDo) {
  const auto with = [](const std::function<void(TrainerOptions&)>& change) {
    TrainerOptions options = options_of("mode: async", 2, 1);
    options.precision = "32-true";
    change(options);
    return message_of(options);
  };
  EXPECT_THAT(with([](auto& options) { options.sync_batchnorm = true; }), HasSubstr("trainer.sync_batchnorm"));
  EXPECT_THAT(with([](auto& options) { options.precision = "16-mixed"; }), HasSubstr("16-mixed"));
  EXPECT_THAT(with([](auto& options) { options.accumulate_grad_batches = 2; }), HasSubstr("accumulate_grad_batches"));
  EXPECT_THAT(with([](auto& options) { options.use_distributed_sampler = false; }),
              HasSubstr("must know how much data each rank has"));
  EXPECT_THAT(with([](auto& options) {
                options.enable_checkpointing = true;
                options.default_root_dir = fresh_folder("parameter_server");
                options.callbacks = {make<ModelCheckpoint>({.every_n_train_steps = 3})};
              }),
              HasSubstr("inside an epoch workers do not wait for each other"));
  EXPECT_THAT(message_of(options_of("mode: async", 2, 1), {.manual = true}), HasSubstr("manual optimization"));
}

TEST(ServedParameters, ServersHaveAboutAsManyElements) {
  const auto module = make<TinyModule>({.width = 30});
  const ServedParameters served(*module, 2, 0, false);
  EXPECT_EQ(served.elements(0) + served.elements(1), 4 * 30 + 30 + 30 + 1);
  EXPECT_LT(std::abs(served.elements(0) - served.elements(1)), 4 * 30);
}

}  // namespace
}  // namespace levin
