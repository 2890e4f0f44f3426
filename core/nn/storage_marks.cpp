#include <levin/core/nn/storage_marks.h>

#include <vector>

namespace levin::detail {
namespace {

struct MarkTables {
  Mutex mutex;
  std::vector<MarkTable*> all LEVIN_GUARDED_BY(mutex) = {};
};

MarkTables& mark_tables() {
  static auto* const tables = new MarkTables;
  return *tables;
}

}  // namespace

MarkTable::MarkTable() {
  MarkTables& tables = mark_tables();
  const MutexLock lock(tables.mutex);
  tables.all.push_back(this);
}

void forget_ended_marks() {
  const std::vector<MarkTable*> all = [] {
    MarkTables& tables = mark_tables();
    const MutexLock lock(tables.mutex);
    return tables.all;
  }();
  for (MarkTable* const table : all) table->forget_ended();  // without the lock: it may end a group
}

}  // namespace levin::detail
