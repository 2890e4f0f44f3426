#pragma once

#include <levin/core/interchange/pickle_value.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin {

class SavedTensor;

/// The bytes of one storage of a file of torch.save: a tensor that is there, or one that is read when its turn comes.
struct StorageToWrite {
  at::Tensor bytes = {};  ///< a contiguous tensor whose elements are the storage
  std::shared_ptr<const SavedTensor> saved = nullptr;
};

/// Turns values into a pickle of protocol 2, as torch.save writes it and `torch.load(weights_only=True)` takes it. Of
/// objects only those that weights_only knows, or that a PickleValue::Kind::kObject names with its state, are written.
class Pickler {
 public:
  /// A tensor that stays where it is saved until it is written; `value` is a kTensor of `document`'s with its shape.
  void defer(const PickleValue* value, std::shared_ptr<const SavedTensor> saved);

  std::string pickle(const PickleValue& root);
  /// The storages that the pickle refers to, by key: "0", "1", ...
  const std::vector<StorageToWrite>& storages() const { return storages_; }

 private:
  template <class T>
  void append(T number);
  void append_text(std::string_view text);
  void append_integer(int64_t number);
  void append_integers(at::IntArrayRef numbers);
  void append_name(const std::string& name);
  void append_items(const std::vector<PickleValue*>& items, char end);
  void append_pairs(const std::vector<PickleValue::Pair>& pairs);
  void append_value(const PickleValue& value, int level);
  void append_collection(const PickleValue& value);
  void append_tensor(const PickleValue& value);
  void append_rebuilt(const PickleValue& value);
  void remember(const PickleValue& value);

  std::string bytes_;
  uint32_t memo_ = 0;
  int level_ = 0;
  std::map<std::string, uint32_t> names_;                        ///< in the memo
  std::unordered_map<const PickleValue*, uint32_t> remembered_;  ///< in the memo
  std::unordered_map<const PickleValue*, std::shared_ptr<const SavedTensor>> deferred_;
  std::map<std::pair<const void*, at::ScalarType>, size_t> keys_;  ///< of storages in memory
  std::vector<StorageToWrite> storages_;
};

/// Writes a file that torch.load reads, with `weights_only=True` and `mmap=True` too. The file appears at once and
/// whole. Of tensors that are deferred one at a time is in memory. Throws levin::Error.
void write_torch_file(const std::string& path, const PickleValue& root, Pickler pickler = {});

}  // namespace levin
