#pragma once

#include <string>
#include <vector>

namespace levin::data {

/// A data module whose tensor "label" has numbers of classes with names. Tools that look at data use them.
class ClassNames {
 public:
  virtual ~ClassNames() = default;
  /// Returns the names in the order of their numbers; known after setup.
  virtual const std::vector<std::string>& classes() const = 0;
};

}  // namespace levin::data
