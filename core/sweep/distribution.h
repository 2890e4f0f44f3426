#pragma once

#include <levin/core/base/config.h>

#include <cstdint>
#include <string>

namespace levin::sweep {

/// Whether a node has the form of a distribution: {uniform: [0, 0.5]}, {log_uniform: [0.0001, 0.1]}, {int_uniform:
/// [1, 4]} or {choice: [a, b]}.
bool is_distribution(const Config& node);

/// A value of the distribution: a pure function of seed, sample and stream. Numbers have six significant digits. Throws
/// ConfigError with `path` for what is no distribution.
Config draw(const Config& distribution, const std::string& path, uint64_t seed, uint64_t sample, uint64_t stream);

}  // namespace levin::sweep
