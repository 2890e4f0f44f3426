#pragma once

#include <levin/core/interchange/pickle_value.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace levin {

class InputFile;
class MappedBytes;

/// A file that torch.save wrote, in the zip format or the one before it (up to PyTorch 1.5), as data. Opening a zip
/// reads no tensor: each is a view of the file in memory, fetched when it is touched, and views of one storage share
/// it. What such a file holds beside data is never run; see Unpickler.
class TorchFile {
 public:
  /// Throws levin::Error for what is no such file, is damaged, or says more than it holds.
  explicit TorchFile(const std::string& path);
  ~TorchFile();
  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  /// What torch.load would return. Lives as long as this; its tensors may live longer.
  const PickleValue& root() const { return *root_; }
  const std::string& path() const { return path_; }

  /// Copies elements of a contiguous tensor of this file, from `offset` on, into a contiguous tensor on the CPU: by
  /// reading where they lie in the file, which leaves no mapped memory behind.
  void read_elements(const at::Tensor& tensor, int64_t offset, const at::Tensor& target) const;

 private:
  void read_zip();
  void read_legacy();
  PickleValue* make_storage(const PickleValue& id);

  std::string path_;
  std::shared_ptr<MappedBytes> bytes_;
  std::unique_ptr<InputFile> file_;
  PickleDocument document_;
  const PickleValue* root_ = nullptr;
  std::map<std::string, PickleValue*, std::less<>> storages_;  ///< by key
  std::function<at::Tensor(const std::string& key, int64_t bytes)> storage_bytes_;
};

}  // namespace levin
