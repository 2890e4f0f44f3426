#pragma once

#include <levin/core/base/error.h>

namespace levin {

/// What ranks do together failed: one of them ended, did not come in time or cannot be reached. Most often the
/// consequence of another rank's failure. Wrong arguments of a collective are a plain Error.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

}  // namespace levin
