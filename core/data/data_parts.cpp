#include <levin/core/data/data_parts.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

DataParts::DataParts(std::map<std::string, Spec<DataModule>> parts) : specs_(std::move(parts)) {
  if (specs_.empty()) throw ConfigError("data.parts is not set; hint: {a: {name: csv, path: a.csv}, b: ...}");
  const bool are_objects =
      std::all_of(specs_.begin(), specs_.end(), [](const auto& part) { return part.second.object() != nullptr; });
  if (are_objects)
    for (const auto& [name, part] : specs_) parts_.emplace_back(name, part.object());
}

void DataParts::make_parts(const Registry<DataModule>& registry) {
  if (!parts_.empty()) return;
  for (const auto& [name, part] : specs_) {
    parts_.emplace_back(name, part.resolve(registry, "data.parts." + name));
    if (auto* inner = dynamic_cast<DataParts*>(parts_.back().second.get())) inner->make_parts(registry);
  }
}

const std::vector<DataParts::Part>& DataParts::parts() const {
  if (parts_.empty())
    throw Error("data",
                "the parts of combined data were given by name, and nobody has made them; hint: make_parts(the "
                "registry of data modules), which levin::Cli calls");
  return parts_;
}

std::vector<DataLoader::Part> DataParts::training_loaders() const {
  std::vector<DataLoader::Part> loaders;
  for (const auto& [name, part] : parts()) {
    loaders.emplace_back(name, part->train_dataloader());
    if (!loaders.back().second) throw Error("data", fmt::format("the part '{}' has no training data", name));
  }
  return loaders;
}

void DataParts::prepare_data() {
  for (const auto& [name, part] : parts()) part->prepare_data();
}
void DataParts::setup(Stage stage) {
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
void DataParts::teardown(Stage stage) {
  if (const auto error = tear_down_parts(parts().size(), stage)) std::rethrow_exception(error);
}

std::exception_ptr DataParts::tear_down_parts(size_t count, Stage stage) {
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

DataLoaders DataParts::loaders_of(DataLoaders (DataModule::*hook)()) {
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

DataLoaders DataParts::val_dataloader() { return loaders_of(&DataModule::val_dataloader); }
DataLoaders DataParts::test_dataloader() { return loaders_of(&DataModule::test_dataloader); }
DataLoaders DataParts::predict_dataloader() { return loaders_of(&DataModule::predict_dataloader); }

State DataParts::state_dict() const {
  State state = State::map();
  for (const auto& [name, part] : parts()) state[name] = part->state_dict();
  return state;
}

void DataParts::load_state_dict(const State& state) {
  for (const auto& [name, part] : parts())
    if (const State* own = state.find(name); own != nullptr && !own->is_null()) part->load_state_dict(*own);
}

}  // namespace levin::data
