#pragma once

#include <levin/core/base/events.h>

#include <string>

namespace levin {

class DataModule;

/// Returns "; hint: ..." with the options of a data module, or of the parts of a combined one, that give the data of a
/// stage (`test_path`); empty where it has none, or was not made by levin::make or by its name. `data`: may be nullptr.
std::string missing_data_hint(const DataModule* data, Stage stage);

}  // namespace levin
