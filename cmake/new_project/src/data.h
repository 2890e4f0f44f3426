#pragma once

#include <levin/levin.h>

#include <memory>

struct CirclesOptions {
  int64_t size = 4000;
  int64_t batch_size = 64;

  static void describe(levin::Schema<CirclesOptions>& schema) {
    schema.field("size", &CirclesOptions::size, "how many points").at_least(10);
    schema.field("batch_size", &CirclesOptions::batch_size, "points in a batch").at_least(1);
  }
};

/// Points of two circles around the origin; a fifth of them for validation.
class Circles : public levin::DataModule {
 public:
  using Options = CirclesOptions;
  explicit Circles(const Options& options) : options_(options) {}

  void setup(levin::Stage /*stage*/) override {
    const auto labels = torch::arange(options_.size).remainder(2);
    const auto angles = torch::arange(options_.size) * 2.399963;  // never the same direction twice
    const auto points = torch::stack({angles.cos(), angles.sin()}, 1) * (1 + labels).unsqueeze(1);
    const int64_t training = options_.size - options_.size / 5;
    const auto part = [&](int64_t begin, int64_t end) {
      return std::make_shared<levin::data::TensorDataset>(
          levin::Batch{{"point", points.slice(0, begin, end)}, {"label", labels.slice(0, begin, end)}});
    };
    train_ = part(0, training);
    validation_ = part(training, options_.size);
  }

  levin::DataLoader train_dataloader() override {
    return levin::DataLoader(train_, {.batch_size = options_.batch_size, .shuffle = true});
  }
  levin::DataLoaders val_dataloader() override {
    return levin::DataLoader(validation_, {.batch_size = options_.batch_size});
  }
  levin::DataLoaders predict_dataloader() override { return val_dataloader(); }

 private:
  Options options_;
  std::shared_ptr<levin::data::Dataset> train_;
  std::shared_ptr<levin::data::Dataset> validation_;
};
