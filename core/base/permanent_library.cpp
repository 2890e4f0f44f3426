#include <levin/core/base/permanent_library.h>

#include <levin/core/base/mutex.h>

#include <memory>
#include <vector>

namespace levin {
namespace {

struct Libraries {
  Mutex mutex;
  std::vector<std::unique_ptr<torch::Library>> all LEVIN_GUARDED_BY(mutex);
};

}  // namespace

torch::Library& permanent_library(torch::Library::Kind kind, const char* name_space,
                                  std::optional<c10::DispatchKey> key, std::source_location where) {
  static auto* const libraries = new Libraries;  // never destroyed
  auto made = std::make_unique<torch::Library>(kind, name_space, key, where.file_name(), where.line());
  const MutexLock lock(libraries->mutex);
  return *libraries->all.emplace_back(std::move(made));
}

}  // namespace levin
