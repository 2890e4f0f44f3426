#pragma once

#include <levin/core/base/error_notes.h>

#include <cstdint>
#include <span>
#include <typeinfo>

namespace levin::data {

/// Notes the function of a data set's class that an error leaves, and the examples it was called for, if any.
void note_data(ErrorNotes& notes, const char* function, const std::type_info& type,
               std::span<const int64_t> indices = {});

}  // namespace levin::data
