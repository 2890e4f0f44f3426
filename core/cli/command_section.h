#pragma once

#include <levin/core/base/schema.h>

#include <functional>
#include <string>
#include <vector>

namespace levin {

/// The section of the configuration that has the options of a command that a program adds.
struct CommandSection {
  std::string name;  ///< the command's
  std::vector<FieldDoc> fields;
  std::function<Config(const Config& node)> resolve;  ///< as Schema::resolve
};

}  // namespace levin
