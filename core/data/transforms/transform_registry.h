#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/transforms/transform.h>

#include <string>
#include <vector>

namespace levin::data {

/// Names that a list of transforms may use in YAML: those of torchvision's v2 in small letters, and a program's own.
Registry<Transform>& transform_registry();

/// Makes the transforms of a list: `[{resize: {size: 256}}, grayscale]`. Throws ConfigError naming the place.
Transforms make_transforms(const std::vector<Spec<Transform>>& specs, const std::string& path);

}  // namespace levin::data
