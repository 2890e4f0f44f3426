#include <levin/core/data/data_notes.h>

#include <levin/core/base/type_name.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace levin::data {

void note_data(ErrorNotes& notes, const char* function, const std::type_info& type, std::span<const int64_t> indices) {
  if (!notes.place.empty()) return;
  constexpr size_t kMostIndices = 8;
  notes.place = fmt::format("{} of {}", function, short_class_name(type));
  if (indices.empty()) return;
  notes.examples = fmt::format("{} {}", indices.size() == 1 ? "example" : "examples",
                               fmt::join(indices.first(std::min(indices.size(), kMostIndices)), ", "));
  if (indices.size() > kMostIndices) notes.examples += fmt::format(" and {} more", indices.size() - kMostIndices);
}

}  // namespace levin::data
