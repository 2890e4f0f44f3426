#include <levin/callbacks/data_summary.h>

#include <levin/core/base/file_system.h>
#include <levin/core/base/png.h>
#include <levin/core/data/class_names.h>
#include <levin/core/data/data_module.h>
#include <levin/core/trainer/trainer.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace levin {

void DataSummaryOptions::describe(Schema<DataSummaryOptions>& schema) {
  using O = DataSummaryOptions;
  schema.field("batches", &O::batches, "batches to count classes in").at_least(1);
  schema.field("images", &O::images, "most images in the picture").at_least(1).at_most(10'000);
}

void DataSummary::on_train_start(Trainer& /*trainer*/, Module& /*module*/) {
  tensors_.clear();
  classes_ = {};
  batches_ = 0;
  examples_ = 0;
}

void DataSummary::on_train_batch_start(Trainer& trainer, Module& /*module*/, const Batch& batch,
                                       int64_t /*batch_idx*/) {
  if (batches_ < 0 || !trainer.is_global_zero()) return;
  if (batches_ == 0) {
    tensors_ = data::summarize(batch);
    const std::string folder = trainer.run_directory();
    if (const auto picture = data::batch_picture(batch, options_.images); picture && !folder.empty())
      FileSystem::current().replace_file(folder + "/data.png", encode_png(*picture));
  }
  classes_.add(batch);
  examples_ += batch.size();
  if (++batches_ == options_.batches) write(trainer);
}

void DataSummary::on_train_end(Trainer& trainer, Module& /*module*/) {
  if (batches_ > 0) write(trainer);
}

void DataSummary::write(const Trainer& trainer) {
  batches_ = -1;
  const std::string folder = trainer.run_directory();
  if (folder.empty()) return;
  using Json = nlohmann::json;
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  Json tensors = Json::array();
  for (const auto& tensor : tensors_)
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"type", tensor.type},
                       {"min", number(tensor.min)},
                       {"max", number(tensor.max)},
                       {"mean", number(tensor.mean)},
                       {"not_finite", tensor.not_finite}});
  const auto* named = dynamic_cast<const data::ClassNames*>(trainer.data_module());
  const auto& counts = classes_.counts();
  Json classes = Json::array();
  // Of many classes without names, those that did not occur are left out.
  for (size_t i = 0; i < std::max(counts.size(), named == nullptr ? 0 : named->classes().size()); ++i) {
    const int64_t count = i < counts.size() ? counts[i] : 0;
    const bool has_name = named != nullptr && i < named->classes().size();
    if (count > 0 || has_name)
      classes.push_back({{"name", has_name ? named->classes()[i] : std::to_string(i)}, {"count", count}});
  }
  const Json json{{"examples", examples_}, {"tensors", std::move(tensors)}, {"classes", std::move(classes)}};
  FileSystem::current().replace_file(folder + "/data.json",
                                     json.dump(1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

}  // namespace levin
