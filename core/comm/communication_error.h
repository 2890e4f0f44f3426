#pragma once

#include <levin/core/base/error.h>

namespace levin {

/// Failure of communication between ranks: one of them ended, was late or cannot be reached. Most often the consequence
/// of another rank's failure. Wrong arguments of a collective are a plain Error.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

}  // namespace levin
