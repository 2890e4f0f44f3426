// Predicts a column of a CSV file from the others, whatever these are: numbers, categories, some of them missing.
//
//   build/bin/table fit --config examples/table/table.yaml --data.path=FILE --data.target=COLUMN

#include <levin/levin.h>

#include <string>
#include <vector>

namespace {

namespace F = torch::nn::functional;

struct TableNetOptions {
  int64_t hidden = 32;
  int64_t embedding = 4;
  double dropout = 0.1;
  double lr = 1e-2;

  static void describe(levin::Schema<TableNetOptions>& schema) {
    schema.field("hidden", &TableNetOptions::hidden, "width of the two hidden layers").at_least(1);
    schema.field("embedding", &TableNetOptions::embedding, "numbers that stand for a category").at_least(1);
    schema.field("dropout", &TableNetOptions::dropout, "share of the hidden values set to zero in training")
        .at_least(0)
        .below(1);
    schema.field("lr", &TableNetOptions::lr, "learning rate").above(0);
  }
};

/// An embedding for each column of categories, two hidden layers. A target that is a number is a regression.
class TableNet : public levin::Module {
 public:
  using Options = TableNetOptions;
  explicit TableNet(const Options& options) : options_(options) {}

  /// The data say how many columns, categories and classes there are.
  void configure_model() override {
    if (net_) return;
    const auto& data = trainer().data_module<levin::data::Csv>();
    int64_t features = 2 * std::ssize(data.numbers());  // a number, and whether it is missing
    for (const auto& column : data.categories()) {
      // Number 0 is for what is missing or was not seen in training.
      embeddings_.push_back(torch::nn::Embedding(std::ssize(column.categories) + 1, options_.embedding));
      register_module("embedding" + std::to_string(embeddings_.size() - 1), embeddings_.back());
      features += options_.embedding;
    }
    const int64_t outputs = data.classes().empty() ? 1 : std::ssize(data.classes());
    net_ = register_module("net", levin::Sequential(torch::nn::Linear(features, options_.hidden), torch::nn::ReLU(),
                                                    torch::nn::Dropout(options_.dropout),
                                                    torch::nn::Linear(options_.hidden, options_.hidden),
                                                    torch::nn::ReLU(), torch::nn::Linear(options_.hidden, outputs)));
  }

  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const auto loss = loss_of(forward(batch), batch);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return evaluate(batch, "val");
  }
  levin::StepOutput test_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return evaluate(batch, "test");
  }

  levin::Batch predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const auto outputs = forward(batch);
    return {{"prediction", outputs.size(1) == 1 ? outputs.select(1, 0) : outputs.argmax(1)}};
  }

  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = options_.lr});
  }

 private:
  levin::StepOutput evaluate(const levin::Batch& batch, const std::string& stage) {
    const auto outputs = forward(batch);
    log(stage + "_loss", loss_of(outputs, batch), {.prog_bar = true});
    if (const auto* label = batch.find("label"))
      log(stage + "_acc", outputs.argmax(1).eq(*label).to(torch::kFloat).mean(), {.prog_bar = true});
    return {};
  }

  torch::Tensor forward(const levin::Batch& batch) {
    std::vector<torch::Tensor> features;
    if (const auto* numbers = batch.find("numbers")) features = {*numbers, batch["missing"]};
    for (size_t i = 0; i < embeddings_.size(); ++i)
      features.push_back(embeddings_[i](batch["categories"].select(1, static_cast<int64_t>(i))));
    return net_(torch::cat(features, 1));
  }

  static torch::Tensor loss_of(const torch::Tensor& outputs, const levin::Batch& batch) {
    if (const auto* label = batch.find("label")) return F::cross_entropy(outputs, *label);
    return F::mse_loss(outputs.select(1, 0), batch["target"]);
  }

  Options options_;
  std::vector<torch::nn::Embedding> embeddings_;
  levin::Sequential net_{nullptr};
};

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<TableNet>("table_net", "embeddings and two hidden layers");
  cli.data.add<levin::data::Csv>("csv", "rows of a CSV file");
  return cli.run(argc, argv);
}
