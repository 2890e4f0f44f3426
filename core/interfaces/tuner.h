#pragma once

#include <levin/core/interfaces/callback.h>

#include <string>

namespace levin {

/// A callback that tries out a setting in on_fit_start, before anything is trained, and takes all traces of that back
/// (see DryRun): what the `tune` command runs. Every rank must have it, since ranks search together.
class Tuner : public Callback {
 public:
  /// Says what was found and how to set it, or why nothing was; several lines. Empty before a search.
  virtual std::string report() const = 0;
};

}  // namespace levin
