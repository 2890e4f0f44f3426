// From C the engine trains to the bit as from C++, goes on from its checkpoints to the bit, and says what is wrong.

#include "c_calls.h"

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/c/array_module.h>
#include <levin/core/engine/engine.h>
#include <levin/core/interchange/weights.h>
#include <levin/core/nn/functional.h>
#include <levin/core/optim/adam.h>
#include <levin/strategies/environments/cluster_environments.h>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>
#include <torch/script.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::weights;

constexpr const char* kModel = "{name: mlp, layers: [3, 16, 2], activation: tanh}";

std::string yaml(const std::string& engine, const std::string& trainer = "") {
  return fmt::format(
      "seed: 5\nengine: {{{}}}\ntrainer: {{accelerator: cpu, logger: false, enable_checkpointing: false{}}}\n", engine,
      trainer);
}

std::string mlp_yaml(const std::string& trainer = "") {
  return yaml(fmt::format("model: {}, loss: mse, optimizer: {{name: adamw, lr: 0.01}}", kModel), trainer);
}

/// The same by hand.
class ByHand : public Module {
 public:
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(batch["x"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01});
  }

 private:
  at::Tensor forward(const at::Tensor& x) { return second_(first_(x).tanh()); }
  torch::nn::Linear first_ = register_module("first", torch::nn::Linear(3, 16));
  torch::nn::Linear second_ = register_module("second", torch::nn::Linear(16, 2));
};

struct Trained {
  std::vector<at::Tensor> weights;
  double loss = 0;
  at::Tensor prediction;
};

Batch batch_of(int index) {
  const auto x = at::empty({8, 3});
  const auto y = at::empty({8, 2});
  c_batch(index, x.data_ptr<float>(), y.data_ptr<float>());
  return {{"x", x}, {"y", y}};
}

Trained by_hand(int steps, const std::string& precision = "32-true") {
  seed_everything(5);
  const auto module = std::make_shared<ByHand>();
  TrainerOptions options = quiet(-1);
  options.precision = precision;
  Engine engine(module, options);
  Trained trained;
  for (int i = 0; i < steps; ++i) trained.loss = engine.train_step(batch_of(i)).loss().item<double>();
  trained.prediction = engine.predict_step(batch_of(0))["y"].clone();
  engine.close();
  trained.weights = weights(*module);
  return trained;
}

/// The weights in a checkpoint of the C interface, and each layer's bias behind it.
std::vector<at::Tensor> saved_weights(const std::string& path) {
  std::vector<at::Tensor> found;
  const SavedTensors tensors = open_weights(path).tensors;
  for (const auto& [name, tensor] : tensors) {
    const size_t end = name.rfind(".weight");
    if (end == std::string::npos) continue;
    found.push_back(tensor->read_whole());
    found.push_back(tensors.at(name.substr(0, end) + ".bias")->read_whole());
  }
  return found;
}

TEST(C, TrainsAsTheEngineDoes) {
  const std::string path = fresh_folder("c") + "/saved";
  double loss = 0;
  ASSERT_EQ(c_train(mlp_yaml().c_str(), nullptr, 0, 20, path.c_str(), &loss), LEVIN_OK) << levin_last_error();
  const Trained expected = by_hand(20);
  EXPECT_TRUE(identical(saved_weights(path), expected.weights));
  EXPECT_EQ(loss, expected.loss);

  for (const int strided : {0, 1}) {
    at::Tensor predicted = at::empty({8, 2}, at::kDouble);
    ASSERT_EQ(c_predict(mlp_yaml().c_str(), path.c_str(), strided, predicted.data_ptr<double>()), LEVIN_OK)
        << levin_last_error();
    EXPECT_TRUE(at::equal(predicted, expected.prediction.to(at::kDouble)));
  }
}

TEST(C, GoesOnToTheBit) {
  const std::string folder = fresh_folder("c");
  // Gradients are accumulated over two batches, and the schedule has a state.
  const std::string text =
      yaml(fmt::format("model: {{mlp: {{layers: [3, 16, 2], dropout: 0.2}}}}, loss: {{name: huber, width: 0.5}}, "
                       "optimizer: adam, scheduler: {{name: exponential, gamma: 0.9, interval: step}}"));
  double whole = 0;
  double parts = 0;
  ASSERT_EQ(c_train(text.c_str(), nullptr, 0, 12, (folder + "/whole").c_str(), &whole), LEVIN_OK) << levin_last_error();
  ASSERT_EQ(c_train(text.c_str(), nullptr, 0, 5, (folder + "/first").c_str(), &parts), LEVIN_OK) << levin_last_error();
  ASSERT_EQ(c_train(text.c_str(), (folder + "/first").c_str(), 5, 12, (folder + "/second").c_str(), &parts), LEVIN_OK)
      << levin_last_error();
  EXPECT_EQ(whole, parts);
  EXPECT_TRUE(identical(saved_weights(folder + "/whole"), saved_weights(folder + "/second")));
}

struct Mistake {
  const char* call;
  levin_status status;
  const char* message;
};

TEST(C, SaysWhichArgumentIsWrong) {
  const std::string text = mlp_yaml();
  for (const Mistake& mistake : std::vector<Mistake>{
           {"null engine", LEVIN_BAD_ARGUMENT, "[c] levin_train: engine is a null pointer"},
           {"null inputs", LEVIN_BAD_ARGUMENT, "[c] inputs is a null pointer; valid: 1 arrays"},
           {"null targets", LEVIN_BAD_ARGUMENT, "[c] targets is a null pointer"},
           {"no inputs", LEVIN_BAD_ARGUMENT, "[c] num_inputs is 0; valid: 1 or more"},
           {"null loss", LEVIN_BAD_ARGUMENT, "[c] levin_evaluate: loss is a null pointer"},
           {"null path", LEVIN_BAD_ARGUMENT, "[c] levin_save: path is a null pointer"},
           {"null name", LEVIN_BAD_ARGUMENT, "[c] levin_log: name is a null pointer"},
           {"null step", LEVIN_BAD_ARGUMENT, "[c] levin_step: step is a null pointer"},
           {"null handle", LEVIN_BAD_ARGUMENT, "[c] levin_create_from_text: engine is a null pointer"},
           {"null yaml", LEVIN_BAD_ARGUMENT, "[c] levin_create_from_text: yaml is a null pointer"},
           {"null data", LEVIN_BAD_ARGUMENT, "[c] inputs[0].data is a null pointer"},
           {"null shape", LEVIN_BAD_ARGUMENT, "[c] inputs[0].shape is a null pointer; valid: 2 numbers"},
           {"struct size", LEVIN_BAD_ARGUMENT, "[c] inputs[0].struct_size is wrong; got 0; valid: sizeof(levin_array)"},
           {"dtype", LEVIN_BAD_ARGUMENT, "[c] inputs[0].dtype is none of a levin_dtype; got 77; valid: LEVIN_FLOAT32"},
           {"ndim", LEVIN_BAD_ARGUMENT, "[c] inputs[0].ndim is out of range; got -1; valid: 0 to 16"},
           {"negative shape", LEVIN_BAD_ARGUMENT, "[c] inputs[0].shape has a negative number; got [8, -3]"},
           {"huge shape", LEVIN_BAD_ARGUMENT, "[c] inputs[0] is larger than any memory"},
           {"backward stride", LEVIN_BAD_ARGUMENT, "[c] inputs[0].strides has a negative number; got [-3, 1]"},
           {"shared output", LEVIN_BAD_ARGUMENT, "[c] outputs[0].strides lets elements share memory; got [0, 1]"},
           {"rank", LEVIN_BAD_ARGUMENT,
            "[c] inputs[0].shape does not fit the model mlp; got [8]; valid: [examples, 3]"},
           {"features", LEVIN_BAD_ARGUMENT, "got [8, 2]; valid: [examples, 3]"},
           {"target shape", LEVIN_BAD_ARGUMENT, "targets[0].shape differs from that of the output; got [8, 1]"},
           {"target rows", LEVIN_BAD_ARGUMENT,
            "inputs[0] and targets[0] differ in the number of examples, their first dimension; got [8, 3] and [7"},
           {"target type", LEVIN_BAD_ARGUMENT, "[c] targets[0].dtype is that of integers; valid: LEVIN_FLOAT32"},
           {"input type", LEVIN_BAD_ARGUMENT, "[c] inputs[0].dtype is that of integers; valid: LEVIN_FLOAT32"},
           {"two inputs", LEVIN_BAD_ARGUMENT, "[c] num_inputs is 2, but the model mlp takes 1 array"},
           {"output shape", LEVIN_BAD_ARGUMENT,
            "outputs[0].shape differs from that of the result; got [8, 1]; valid: "
            "[8, 2]"},
           {"output type", LEVIN_BAD_ARGUMENT, "[c] outputs[0].dtype cannot hold the result, which is floating"},
           {"two outputs", LEVIN_BAD_ARGUMENT, "[c] num_outputs is 2, but the model gives 1 array"},
           {"other pointer", LEVIN_CLOSED, "[c] levin_step of an engine that was closed, or never was one"},
           {"closed", LEVIN_CLOSED, "[c] levin_train of an engine that was closed, or never was one"},
           {"closed twice", LEVIN_CLOSED, "[c] levin_close of an engine that was closed"},
           {"late load", LEVIN_BAD_ARGUMENT, "load after the first step; valid: before it"},
           {"empty checkpoint", LEVIN_BAD_ARGUMENT, "[c] levin_load: checkpoint is empty"},
           {"empty path", LEVIN_BAD_ARGUMENT, "[c] levin_save: path is empty"},
           {"many inputs", LEVIN_BAD_ARGUMENT, "[c] num_inputs is out of range; got"},
           {"no examples", LEVIN_BAD_ARGUMENT, "[c] inputs[0] has no examples"},
           {"missing checkpoint", LEVIN_BAD_ARGUMENT, "/nowhere/checkpoint"}}) {
    EXPECT_EQ(c_mistake(mistake.call, text.c_str()), mistake.status) << mistake.call;
    EXPECT_THAT(levin_last_error(), HasSubstr(mistake.message)) << mistake.call;
  }
}

levin_status create(const std::string& text) {
  levin_engine* engine = nullptr;
  const levin_status status = levin_create_from_text(text.c_str(), nullptr, &engine);
  EXPECT_EQ(engine == nullptr, status != LEVIN_OK);
  if (engine != nullptr) levin_close(engine);
  return status;
}

TEST(C, SaysWhatIsWrongInTheConfiguration) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"engin: {}", "did you mean 'engine'"},
      {"engine: {modle: mlp}", "did you mean 'model'"},
      {"engine: {}", "engine.model is missing; valid: mlp, torchscript"},
      {"engine: {model: mpl}", "unknown model 'mpl'; did you mean 'mlp'"},
      {"engine: {model: {name: mlp, layer: [3, 1]}}", "did you mean 'layers'"},
      {"engine: {model: mlp}", "engine.model.layers has the features of the input"},
      {"engine: {model: {name: mlp, layers: [3, 0]}}", "engine.model.layers must be at least 1 each; got 0"},
      {"engine: {model: {name: mlp, layers: [3, 1]}, loss: mes}", "unknown loss 'mes'; did you mean 'mse'"},
      {"engine: {model: {name: mlp, layers: [3, 1]}, optimizer: adma}", "unknown optimizer 'adma'"},
      {"engine: {model: {name: mlp, layers: [3, 1]}}\ntrainer: {optimizer: adam}",
       "text:2:22: trainer.optimizer is engine.optimizer here"},
      {"engine: {model: {name: mlp, layers: [3, 1]}}\ntrainer: {fast_dev_run: true}", "trainer.fast_dev_run"},
      {"engine: {model: {torchscript: /nowhere/net.pt}}", "there is no file '/nowhere/net.pt'"},
      {"engine: {model: torchscript}", "engine.model needs `file`"},
      {"engine: [", "text:1"},
      {"[1, 2]", "text:1:1: expected a mapping of options"},
      {"engine: {model: {name: mlp, layers: [3, 1]}, optimizer: {name: adam, lr: fast}}", "engine.optimizer.lr"},
      {"engine: {model: {name: mlp, layers: [3, 1]}}\ntrainer: {devices: 4}",
       "got 4 devices and no launcher; valid: 1"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(create(text), LEVIN_BAD_CONFIG) << text;
    EXPECT_THAT(levin_last_error(), HasSubstr(message)) << text;
  }
  levin_engine* engine = nullptr;
  EXPECT_EQ(levin_create("/nowhere/engine.yaml", nullptr, &engine), LEVIN_BAD_CONFIG);
  EXPECT_THAT(levin_last_error(), HasSubstr("/nowhere/engine.yaml"));
  EXPECT_EQ(levin_create("/tmp", nullptr, &engine), LEVIN_BAD_CONFIG);
  EXPECT_THAT(levin_last_error(), HasSubstr("'/tmp' is a folder"));
}

struct OpenEngine {
  explicit OpenEngine(const std::string& text) {
    EXPECT_EQ(levin_create_from_text(text.c_str(), nullptr, &handle), LEVIN_OK) << levin_last_error();
  }
  ~OpenEngine() { EXPECT_EQ(levin_close(handle), LEVIN_OK) << levin_last_error(); }
  OpenEngine(const OpenEngine&) = delete;
  OpenEngine& operator=(const OpenEngine&) = delete;
  levin_engine* handle = nullptr;
};

levin_array array_of(const at::Tensor& tensor, levin_dtype type) {
  return {.struct_size = sizeof(levin_array),
          .data = tensor.data_ptr(),
          .dtype = type,
          .ndim = static_cast<int32_t>(tensor.dim()),
          .shape = tensor.sizes().data(),
          .strides = tensor.strides().data()};
}

/// Where a step stops: 1: in it; 2: it may go on.
std::atomic<int> gate{0};

std::unique_ptr<at::ObserverContext> wait_in_first_operator(const at::RecordFunction& /*operator_*/) {
  if (gate == 0) gate = 1;
  while (gate != 2) std::this_thread::yield();
  return nullptr;
}

/// `weight`: the script's `w`; undefined: it has none.
std::string script_file(const std::string& forward, const at::Tensor& weight = {}) {
  const std::string path = fresh_folder("c_script") + "/net.pt";
  torch::jit::Module module("Net");
  if (weight.defined()) module.register_parameter("w", weight, /*is_buffer=*/false);
  module.define(forward);
  module.save(path);
  return path;
}

TEST(C, RefusesASecondThreadAndTakesStopsFromIt) {
  const OpenEngine engine(mlp_yaml());
  const Batch batch = batch_of(0);
  const levin_array x = array_of(batch["x"], LEVIN_FLOAT32);
  const levin_array y = array_of(batch["y"], LEVIN_FLOAT32);
  gate = 0;
  std::thread other([&] {
    at::addThreadLocalCallback(at::RecordFunctionCallback(wait_in_first_operator).scopes({at::RecordScope::FUNCTION}));
    EXPECT_EQ(levin_train(engine.handle, &x, 1, &y, 1, nullptr), LEVIN_OK) << levin_last_error();
  });
  while (gate != 1) std::this_thread::yield();
  int64_t step = 0;
  EXPECT_EQ(levin_step(engine.handle, &step), LEVIN_BUSY);
  EXPECT_THAT(levin_last_error(), HasSubstr("[c] levin_step while another thread uses the engine"));
  EXPECT_EQ(levin_close(engine.handle), LEVIN_BUSY);
  EXPECT_EQ(levin_request_stop(engine.handle, "the simulation is over"), LEVIN_OK);
  gate = 2;
  other.join();
  EXPECT_EQ(levin_step(engine.handle, &step), LEVIN_OK) << levin_last_error();
  EXPECT_EQ(step, 1);
  int stop = 0;
  EXPECT_EQ(levin_stop_requested(engine.handle, &stop), LEVIN_OK) << levin_last_error();
  EXPECT_EQ(stop, 1);
}

TEST(C, TrainsScriptsOfSeveralArrays) {
  const std::string net = script_file("def forward(self, a, b):\n  return self.w * a + b.float(), self.w * self.w\n",
                                      at::ones({1}).requires_grad_());
  const std::string loss =
      script_file("def forward(self, u, v, target):\n  return ((u - target) ** 2).mean() + v.sum()\n");
  const OpenEngine engine(yaml(fmt::format(
      "model: {{torchscript: '{}'}}, loss: {{torchscript: '{}'}}, optimizer: {{sgd: {{lr: 0.1}}}}", net, loss)));
  const at::Tensor a = at::arange(4, at::kDouble);
  const at::Tensor b = at::ones({4}, at::kInt);
  const at::Tensor target = at::zeros({4});
  const std::array inputs = {array_of(a, LEVIN_FLOAT64), array_of(b, LEVIN_INT32)};
  const levin_array wanted = array_of(target, LEVIN_FLOAT32);
  double before = 0;
  double trained = 0;
  ASSERT_EQ(levin_evaluate(engine.handle, inputs.data(), 2, &wanted, 1, &before), LEVIN_OK) << levin_last_error();
  EXPECT_EQ(before, 7.5 + 1);  // (1 + 4 + 9 + 16) / 4 and 1
  ASSERT_EQ(levin_train(engine.handle, inputs.data(), 2, &wanted, 1, &trained), LEVIN_OK) << levin_last_error();
  EXPECT_EQ(trained, before);

  // w = 1 - 0.1 * (2 * mean((a + 1) * a) + 2) = 1 - 0.1 * 12
  const at::Tensor first = at::empty({4}, at::kDouble);
  const at::Tensor second = at::empty({1}, at::kFloat);
  const std::array outputs = {array_of(first, LEVIN_FLOAT64), array_of(second, LEVIN_FLOAT32)};
  ASSERT_EQ(levin_predict(engine.handle, inputs.data(), 2, outputs.data(), 2), LEVIN_OK) << levin_last_error();
  EXPECT_TRUE(at::allclose(first, -0.2 * a + 1, 1e-6, 1e-6));
  EXPECT_NEAR(second.item<double>(), 0.04, 1e-6);
}

TEST(C, TrainsClassesAndKeepsDoubles) {
  const OpenEngine engine(
      yaml("model: {name: mlp, layers: [3, 4]}, loss: cross_entropy, optimizer: sgd", ", precision: 64-true"));
  seed_everything(5);
  torch::nn::Linear linear(3, 4);
  linear->to(at::kDouble);
  // No float has these values.
  const at::Tensor x = at::arange(24, at::kDouble).reshape({8, 3}).mul(0.3).sin();
  const at::Tensor classes = at::arange(8, at::kInt).remainder(4);
  const levin_array input = array_of(x, LEVIN_FLOAT64);
  levin_array target = array_of(classes, LEVIN_INT32);
  double loss = 0;
  ASSERT_EQ(levin_train(engine.handle, &input, 1, &target, 1, &loss), LEVIN_OK) << levin_last_error();
  EXPECT_EQ(loss, at::cross_entropy_loss(linear(x), classes.to(at::kLong)).item<double>());
  const at::Tensor two = at::zeros({8, 4}, at::kInt);
  target = array_of(two, LEVIN_INT32);
  EXPECT_EQ(levin_train(engine.handle, &input, 1, &target, 1, &loss), LEVIN_BAD_ARGUMENT);
  EXPECT_THAT(levin_last_error(),
              HasSubstr("targets[0].shape is not a class for each example; got [8, 4]; valid: [8]"));
  for (const int32_t none : {4, -1, -101}) {
    const at::Tensor wrong = classes.clone().index_fill_(0, at::zeros({1}, at::kLong), none);
    target = array_of(wrong, LEVIN_INT32);
    EXPECT_EQ(levin_train(engine.handle, &input, 1, &target, 1, &loss), LEVIN_BAD_ARGUMENT) << none;
    EXPECT_THAT(levin_last_error(), HasSubstr("targets[0] has a class that is none of the output's; got")) << none;
  }
  const at::Tensor ignored = classes.clone().index_fill_(0, at::zeros({1}, at::kLong), -100);
  target = array_of(ignored, LEVIN_INT32);
  EXPECT_EQ(levin_train(engine.handle, &input, 1, &target, 1, &loss), LEVIN_OK) << levin_last_error();
}

TEST(C, LogsValues) {
  const std::string folder = fresh_folder("c_log");
  {
    const OpenEngine engine(
        fmt::format("engine: {{model: {{name: mlp, layers: [3, 2]}}}}\n"
                    "trainer: {{accelerator: cpu, logger: csv, run_dir: {}}}\n",
                    folder));
    EXPECT_EQ(levin_log(engine.handle, "energy", 2.5), LEVIN_OK) << levin_last_error();
    EXPECT_EQ(levin_log(engine.handle, "", 2.5), LEVIN_FAILED);
  }
  std::ifstream file(folder + "/metrics.csv");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, AllOf(HasSubstr("energy"), HasSubstr("2.5")));
}

TEST(C, NoExceptionOfAHandlerOfMessagesGoesFurther) {
  std::string got;
  ASSERT_EQ(levin_set_message_handler(
                [](const char* line, void* user) {
                  *static_cast<std::string*>(user) += line;
                  return 0;
                },
                &got),
            LEVIN_OK);
  log::warning("first");
  ASSERT_EQ(
      levin_set_message_handler([](const char*, void*) -> int { throw std::string("no std::exception"); }, nullptr),
      LEVIN_OK);
  ::testing::internal::CaptureStderr();
  log::warning("second");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("has thrown an exception"), HasSubstr("second")));
  ASSERT_EQ(levin_set_message_handler(nullptr, nullptr), LEVIN_OK);
  EXPECT_THAT(got, HasSubstr("first"));
}

TEST(C, TakesThePlaceOfTheProgramsRanks) {
  levin_ranks ranks{.struct_size = sizeof(levin_ranks),
                    .rank = 0,
                    .world_size = 1,
                    .local_rank = 0,
                    .local_world_size = 1,
                    .node_rank = 0,
                    .main_port = 1,
                    .main_address = "127.0.0.1"};
  ASSERT_EQ(levin_free_port(&ranks.main_port), LEVIN_OK) << levin_last_error();
  levin_engine* engine = nullptr;
  ASSERT_EQ(levin_create_from_text(mlp_yaml().c_str(), &ranks, &engine), LEVIN_OK) << levin_last_error();
  int64_t rank = -1;
  int64_t world_size = -1;
  EXPECT_EQ(levin_rank(engine, &rank, &world_size), LEVIN_OK);
  EXPECT_EQ(rank, 0);
  EXPECT_EQ(world_size, 1);
  EXPECT_EQ(levin_close(engine), LEVIN_OK);
  EXPECT_EQ(detect_environment(), nullptr);

  const auto refuses = [&](levin_ranks wrong, const char* message) {
    EXPECT_EQ(levin_create_from_text(mlp_yaml().c_str(), &wrong, &engine), LEVIN_BAD_ARGUMENT);
    EXPECT_THAT(levin_last_error(), HasSubstr(message));
  };
  levin_ranks wrong = ranks;
  wrong.rank = 1;
  refuses(wrong, "ranks.rank is out of range; got 1; valid: 0 to 0");
  wrong = ranks;
  wrong.main_port = 0;
  refuses(wrong, "ranks.main_port is out of range; got 0; valid: 1 to 65535");
  wrong = ranks;
  wrong.struct_size = 8;
  refuses(wrong, "ranks.struct_size is wrong; got 8");
  wrong = ranks;
  std::memset(wrong.main_address, 'a', sizeof(wrong.main_address));
  refuses(wrong, "ranks.main_address is no name or address of a host");
}

}  // namespace
}  // namespace levin
