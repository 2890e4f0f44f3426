#include <levin/core/data/combined_data.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace levin::data {

void CombinedDataOptions::describe(Schema<CombinedDataOptions>& schema) {
  using O = CombinedDataOptions;
  schema.field("mode", &O::mode,
               "one batch of each part until the first one ends (min_size) or the longest (max_size), "
               "where shorter ones begin again (max_size_cycle); or one part after the other",
               {{"min_size", CombinedMode::kMinSize},
                {"max_size_cycle", CombinedMode::kMaxSizeCycle},
                {"max_size", CombinedMode::kMaxSize},
                {"sequential", CombinedMode::kSequential}});
  schema.field("parts", &O::parts, "data modules, by the name under which a batch has their tensors: `NAME.TENSOR`");
}

CombinedData::CombinedData(const Options& options) : options_(options) {
  if (options_.parts.empty()) throw ConfigError("data.parts is not set; hint: {a: {name: csv, path: a.csv}, b: ...}");
  const bool are_objects = std::all_of(options_.parts.begin(), options_.parts.end(),
                                       [](const auto& part) { return part.second.object() != nullptr; });
  if (are_objects)
    for (const auto& [name, part] : options_.parts) parts_.emplace_back(name, part.object());
}

void CombinedData::make_parts(const Registry<DataModule>& registry) {
  if (!parts_.empty()) return;
  for (const auto& [name, part] : options_.parts) {
    parts_.emplace_back(name, part.resolve(registry, "data.parts." + name));
    if (auto* combined = dynamic_cast<CombinedData*>(parts_.back().second.get())) combined->make_parts(registry);
  }
}

const std::vector<CombinedData::Part>& CombinedData::parts() const {
  if (parts_.empty())
    throw Error("data",
                "the parts of combined data were given by name, and nobody has made them; hint: make_parts(the "
                "registry of data modules), which levin::Cli calls");
  return parts_;
}

void CombinedData::prepare_data() {
  for (const auto& [name, part] : parts()) part->prepare_data();
}
void CombinedData::setup(Stage stage) {
  for (size_t i = 0; i < parts().size(); ++i) {
    try {
      parts()[i].second->setup(stage);
    } catch (...) {
      // Who calls takes none of them for set up.
      const std::exception_ptr error = std::current_exception();
      tear_down_parts(i, stage);
      std::rethrow_exception(error);
    }
  }
}
void CombinedData::teardown(Stage stage) {
  if (const auto error = tear_down_parts(parts().size(), stage)) std::rethrow_exception(error);
}

std::exception_ptr CombinedData::tear_down_parts(size_t count, Stage stage) {
  std::exception_ptr first;
  for (size_t i = 0; i < count; ++i) {
    try {
      parts()[i].second->teardown(stage);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  return first;
}

DataLoader CombinedData::train_dataloader() {
  std::vector<DataLoader::Part> loaders;
  for (const auto& [name, part] : parts()) {
    loaders.emplace_back(name, part->train_dataloader());
    if (!loaders.back().second) throw Error("data", fmt::format("the part '{}' has no training data", name));
  }
  return DataLoader::combined(std::move(loaders), options_.mode);
}

DataLoaders CombinedData::loaders_of(DataLoaders (DataModule::*hook)()) {
  DataLoaders all;
  evaluated_.clear();
  for (size_t part = 0; part < parts().size(); ++part) {
    const DataLoaders own = (parts()[part].second.get()->*hook)();
    for (size_t i = 0; i < own.size(); ++i) {
      all.push_back(own[i]);
      evaluated_.emplace_back(part, static_cast<int64_t>(i));
    }
  }
  return all;
}

DataLoaders CombinedData::val_dataloader() { return loaders_of(&DataModule::val_dataloader); }
DataLoaders CombinedData::test_dataloader() { return loaders_of(&DataModule::test_dataloader); }
DataLoaders CombinedData::predict_dataloader() { return loaders_of(&DataModule::predict_dataloader); }

Batch CombinedData::transferred(Batch batch, int64_t dataloader_idx, Batch (DataModule::*hook)(Batch, int64_t)) {
  bool is_combined = false;
  for (const auto& [name, part] : parts()) {
    const Batch own = batch.part(name);
    if (own.empty()) continue;
    is_combined = true;
    batch.set_part(name, (part.get()->*hook)(own, 0));
  }
  const auto place = static_cast<size_t>(dataloader_idx);
  if (is_combined || place >= evaluated_.size()) return batch;
  const auto [part, own_idx] = evaluated_[place];
  return (parts()[part].second.get()->*hook)(std::move(batch), own_idx);
}

Batch CombinedData::on_before_batch_transfer(Batch batch, int64_t dataloader_idx) {
  return transferred(std::move(batch), dataloader_idx, &DataModule::on_before_batch_transfer);
}
Batch CombinedData::on_after_batch_transfer(Batch batch, int64_t dataloader_idx) {
  return transferred(std::move(batch), dataloader_idx, &DataModule::on_after_batch_transfer);
}

State CombinedData::state_dict() const {
  State state = State::map();
  for (const auto& [name, part] : parts()) state[name] = part->state_dict();
  return state;
}

void CombinedData::load_state_dict(const State& state) {
  for (const auto& [name, part] : parts())
    if (const State* own = state.find(name); own != nullptr && !own->is_null()) part->load_state_dict(*own);
}

}  // namespace levin::data
