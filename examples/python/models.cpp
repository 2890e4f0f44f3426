// A model and its data as an extension module for Python: what train.py imports.

#include <levin/core/python/python_module.h>
#include <levin/levin.h>

namespace {

namespace F = torch::nn::functional;

struct ClassifierOptions {
  int64_t hidden = 32;
  double lr = 1e-2;

  static void describe(levin::Schema<ClassifierOptions>& schema) {
    schema.field("hidden", &ClassifierOptions::hidden, "width of the hidden layers").at_least(1);
    schema.field("lr", &ClassifierOptions::lr, "AdamW learning rate").above(0);
  }
};

/// Says which of two spirals a point of the plane is on.
class SpiralClassifier : public levin::Module {
 public:
  using Options = ClassifierOptions;

  explicit SpiralClassifier(const Options& options) : options_(options) {
    body_ = register_module("body", levin::Sequential(torch::nn::Linear(2, options.hidden), torch::nn::Tanh(),
                                                      torch::nn::Linear(options.hidden, options.hidden),
                                                      torch::nn::BatchNorm1d(options.hidden), torch::nn::Tanh()));
    head_ = register_module("head", torch::nn::Linear(options.hidden, 2));
  }

  /// Features [N, hidden] of points [N, 2].
  at::Tensor features(const at::Tensor& points) { return body_(points); }

  /// Logits [N, 2] of points [N, 2].
  at::Tensor forward(const at::Tensor& points) { return head_(features(points)); }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = F::cross_entropy(forward(batch["point"]), batch["spiral"]);
    log("train_loss", loss, {.on_epoch = true, .prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    auto logits = forward(batch["point"]);
    log("val_loss", F::cross_entropy(logits, batch["spiral"]));
    log("val_acc", accuracy_.update(logits, batch["spiral"]));
    return {};
  }

  levin::Batch predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return {{"spiral", forward(batch["point"]).argmax(1)}};
  }

  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = options_.lr});
  }

 private:
  Options options_;
  levin::Sequential body_{nullptr};
  torch::nn::Linear head_{nullptr};
  levin::metrics::Accuracy accuracy_{{.num_classes = 2}};
};

struct SpiralsOptions {
  int64_t size = 2000;
  int64_t batch_size = 50;
  double noise = 0.05;

  static void describe(levin::Schema<SpiralsOptions>& schema) {
    schema.field("size", &SpiralsOptions::size, "points of each spiral").at_least(1);
    schema.field("batch_size", &SpiralsOptions::batch_size, "points in a batch").at_least(1);
    schema.field("noise", &SpiralsOptions::noise, "standard deviation of what is added to a point").at_least(0);
  }
};

/// Points of two spirals that wind around each other: `point` [N, 2] and `spiral` [N], 0 or 1.
class Spirals : public levin::DataModule {
 public:
  using Options = SpiralsOptions;

  explicit Spirals(const Options& options) : options_(options) {}

  void setup(levin::Stage /*stage*/) override {
    train_ = points(options_.size);
    val_ = points(options_.size / 4 + 1);
  }

  levin::DataLoader train_dataloader() override {
    return levin::DataLoader(train_, {.batch_size = options_.batch_size, .shuffle = true});
  }
  levin::DataLoaders val_dataloader() override { return levin::DataLoader(val_, {.batch_size = 500}); }
  levin::DataLoaders predict_dataloader() override { return val_dataloader(); }

 private:
  std::shared_ptr<levin::data::TensorDataset> points(int64_t size) const {
    auto spiral = torch::arange(2).repeat_interleave(size);
    auto turn = torch::rand({2 * size});
    auto angle = 9.0 * turn + M_PI * spiral;
    auto point = torch::stack({turn * angle.cos(), turn * angle.sin()}, 1);
    point += options_.noise * torch::randn_like(point);
    return std::make_shared<levin::data::TensorDataset>(levin::Batch{{"point", point}, {"spiral", spiral}});
  }

  Options options_;
  std::shared_ptr<levin::data::TensorDataset> train_;
  std::shared_ptr<levin::data::TensorDataset> val_;
};

}  // namespace

LEVIN_PYTHON_MODULE(module) {
  levin::python::bind_module<SpiralClassifier>(module, "SpiralClassifier", "Says which of two spirals a point is on.")
      .def("features", &SpiralClassifier::features, pybind11::call_guard<pybind11::gil_scoped_release>());
  levin::python::bind_data_module<Spirals>(module, "Spirals", "Points of two spirals that wind around each other.");
}
