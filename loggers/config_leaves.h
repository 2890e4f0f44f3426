#pragma once

#include <levin/core/base/config.h>

#include <functional>
#include <string>

namespace levin {

/// Calls `visit` for everything in `config` that is not a non-empty mapping, with its dotted path. A sequence is one
/// value, as it is to the user.
void for_each_leaf(const Config& config,
                   const std::function<void(const std::string& path, const Config& value)>& visit);

/// Writes a leaf as the user did: the text of a scalar, flow style of anything else.
std::string leaf_text(const Config& value);

/// Writes the tree as JSON: what YAML takes for null, true, false or a finite number is that, other scalars are
/// strings.
std::string config_json(const Config& config);

}  // namespace levin
