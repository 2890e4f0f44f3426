#include <levin/core/accelerators/visible_devices.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

namespace levin {
namespace {

/// The index of the GPU that an entry of the variable names, or -1.
int64_t index_of(const std::string& entry, const std::vector<NvmlGpu>& gpus) {
  int64_t index = -1;
  const char* const end = entry.data() + entry.size();
  if (const auto [rest, error] = std::from_chars(entry.data(), end, index); error == std::errc() && rest == end)
    return index < std::ssize(gpus) ? index : -1;
  const auto fits = [&](const NvmlGpu& gpu) { return !entry.empty() && gpu.uuid.starts_with(entry); };
  const auto found = std::find_if(gpus.begin(), gpus.end(), fits);
  // The beginning of two names is none.
  return std::count_if(gpus.begin(), gpus.end(), fits) == 1 ? found - gpus.begin() : -1;
}

}  // namespace

std::optional<int64_t> visible_devices(const std::optional<std::string>& variable, const std::vector<NvmlGpu>& gpus) {
  if (!variable) return std::ssize(gpus);
  std::set<int64_t> seen;
  std::istringstream entries(*variable);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const size_t first = entry.find_first_not_of(' ');
    entry = first == entry.npos ? "" : entry.substr(first, entry.find_last_not_of(' ') - first + 1);
    if (entry.starts_with("MIG")) return {};
    const int64_t index = index_of(entry, gpus);
    if (index < 0) break;
    // CUDA takes a list that names a GPU twice for none at all.
    if (!seen.insert(index).second) return 0;
  }
  return std::ssize(seen);
}

}  // namespace levin
