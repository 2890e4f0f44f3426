#include <levin/core/connectors/missing_data_hint.h>

#include <levin/core/base/config.h>
#include <levin/core/base/error.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/data_parts.h>

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace levin {
namespace {

void add_options(const DataModule& data, std::string_view beginning, const std::string& place,
                 std::vector<std::string>& names) {
  if (const auto* combined = dynamic_cast<const data::DataParts*>(&data)) {
    for (const auto& [name, part] : combined->parts())
      add_options(*part, beginning, fmt::format("{}parts.{}.", place, name), names);
    return;
  }
  if (!data.init_options().is_mapping()) return;
  for (const Config::Entry& entry : data.init_options().entries())
    if (entry.key.starts_with(beginning)) names.push_back(place + entry.key);
}

}  // namespace

std::string missing_data_hint(const DataModule* data, Stage stage) {
  if (data == nullptr) return "";
  std::vector<std::string> names;
  const auto add = [&](std::string_view beginning) { add_options(*data, beginning, "", names); };
  switch (stage) {
    case Stage::kFit:
      add("train_");
      break;
    case Stage::kValidate:
      add("val_");
      break;
    case Stage::kTest:
      add("test_");
      break;
    case Stage::kPredict:
      add("predict_");
      if (names.empty()) add("test_");  // what the shipped ones predict
  }
  if (names.empty()) return "";
  return fmt::format("; hint: options of the data module '{}' that give them: {}", data->init_name(), join(names));
}

}  // namespace levin
