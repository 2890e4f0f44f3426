#include <levin/core/interchange/torch_file.h>

#include <levin/core/base/error.h>
#include <levin/core/checkpoint/input_file.h>
#include <levin/core/interchange/mapped_bytes.h>
#include <levin/core/interchange/other_formats.h>
#include <levin/core/interchange/unpickler.h>
#include <levin/core/interchange/zip_file.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace levin {
namespace {

using Kind = PickleValue::Kind;

static_assert(std::endian::native == std::endian::little, "storages are read as little-endian");

constexpr std::string_view kZip = "PK\3\4";
/// The first pickle of the older format: the number 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

}  // namespace

TorchFile::TorchFile(const std::string& path)
    : path_(path), bytes_(std::make_shared<MappedBytes>(path)), file_(std::make_unique<InputFile>(path)) {
  const std::string_view bytes(bytes_->data(), bytes_->size());
  try {
    if (bytes.starts_with(kZip))
      read_zip();
    else
      read_legacy();
  } catch (const c10::Error& error) {
    throw Error("weights", fmt::format("{} cannot be read: {}", path_, error.what_without_backtrace()));
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (message.find(path_) != std::string_view::npos) throw;
    throw Error("weights", fmt::format("{}: {}", path_, message.substr(message.find("] ") + 2)));
  }
}

TorchFile::~TorchFile() = default;

void TorchFile::read_zip() {
  const std::string_view bytes(bytes_->data(), bytes_->size());
  const ZipFile zip(bytes, path_);
  std::string folder;
  for (const auto& [name, member] : zip.members())
    if (name == "data.pkl" || (name.ends_with("/data.pkl") && std::count(name.begin(), name.end(), '/') == 1))
      folder = name.substr(0, name.size() - std::string_view("data.pkl").size());
  if (!zip.members().contains(folder + "data.pkl"))
    throw Error("weights", fmt::format("{} is a zip archive that torch.save did not write: it has no data.pkl; valid: "
                                       "files of torch.save, safetensors, folders of Hugging Face or Levin",
                                       path_));
  if (zip.members().contains(folder + "constants.pkl"))
    throw Error("weights", fmt::format("{} is a TorchScript archive; valid: a file of torch.save; hint: in Python, "
                                       "torch.save(torch.jit.load(PATH).state_dict(), NEW_PATH)",
                                       path_));
  if (zip.members().contains(folder + "byteorder") && zip.checked(folder + "byteorder") != "little")
    throw Error("weights", fmt::format("{} was written by a big-endian machine, which is not supported", path_));
  storage_bytes_ = [&](const std::string& key, int64_t size) {
    const auto member = zip.members().find(folder + "data/" + key);
    if (member == zip.members().end())
      throw Error("weights", fmt::format("{} is damaged: the storage '{}' is missing", path_, key));
    if (static_cast<uint64_t>(size) != member->second.size)
      throw Error("weights", fmt::format("{} is damaged: the storage '{}' has {} bytes; got {} in the pickle", path_,
                                         key, member->second.size, size));
    if (!member->second.is_stored)
      throw Error("weights", fmt::format("{} is damaged: the storage '{}' is compressed", path_, key));
    const c10::InferenceMode ordinary(false);
    char* const data = bytes_->data() + member->second.offset;
    // Elements of one to sixteen bytes; torch.save aligns to 64.
    if (reinterpret_cast<uintptr_t>(data) % 16 == 0)
      return at::from_blob(
          data, {size}, [bytes = bytes_](void*) {}, at::TensorOptions().dtype(at::kByte));
    at::Tensor copy = at::empty({size}, at::TensorOptions().dtype(at::kByte));
    if (size > 0) file_->read(member->second.offset, copy.mutable_data_ptr(), static_cast<size_t>(size));
    return copy;
  };
  Unpickler unpickler(document_, zip.checked(folder + "data.pkl"),
                      [this](const PickleValue& id) { return make_storage(id); });
  root_ = unpickler.read();
  storage_bytes_ = nullptr;
}

/// Pickles of a magic number, the version, facts about the machine, the object and the storages' keys; then of each
/// storage the number of its elements and these.
void TorchFile::read_legacy() {
  const std::string_view bytes(bytes_->data(), bytes_->size());
  const auto find_storage = [this](const PickleValue& id) { return make_storage(id); };
  Unpickler unpickler(document_, bytes, find_storage, /*elements_known=*/false);
  const PickleValue* magic = nullptr;
  try {
    if (!bytes.empty() && bytes.front() == '\x80') magic = unpickler.read();
  } catch (const Error&) {  // said below
  }
  if (magic == nullptr || !magic->is(Kind::kBigInt) || magic->text != kLegacyMagic) {
    const std::string other = other_format_of(path_, bytes.substr(0, 512));
    if (!other.empty()) throw Error("weights", fmt::format("{} is {}", path_, other));
    throw Error(
        "weights",
        fmt::format("{} is {}; valid: files of torch.save, safetensors, folders of Hugging Face or Levin", path_,
                    magic != nullptr ? "a pickle that torch.save did not write" : "a file of another format"));
  }
  unpickler.read();
  unpickler.read();
  // A storage's place is known only after the object; it is memory of its own, since nothing in the file is aligned.
  int64_t total = 0;
  storage_bytes_ = [&](const std::string& key, int64_t size) {
    if (size > static_cast<int64_t>(bytes.size()) - total)
      throw Error("weights", fmt::format("{} is damaged: the storage '{}' of {} bytes does not fit into the file",
                                         path_, key, size));
    total += size;
    const c10::InferenceMode ordinary(false);
    return at::empty({size}, at::TensorOptions().dtype(at::kByte));
  };
  const uint64_t object = unpickler.position();
  unpickler.read();
  const PickleValue* const keys = unpickler.read();
  uint64_t at = unpickler.position();
  size_t filled = 0;
  for (const PickleValue* key : keys->items) {
    const auto found = storages_.find(key->text);
    if (found == storages_.end() || bytes.size() - at < sizeof(int64_t))
      throw Error("weights", fmt::format("{} is damaged: it ends inside of its storages", path_));
    int64_t elements = 0;
    std::memcpy(&elements, bytes.data() + at, sizeof(elements));
    at += sizeof(elements);
    const int64_t size = found->second->integer;
    const auto item = static_cast<int64_t>(c10::elementSize(torch_type(found->second->text)));
    if (elements < 0 || elements > size / item || elements * item != size ||
        static_cast<uint64_t>(size) > bytes.size() - at)
      throw Error("weights", fmt::format("{} is damaged: it ends inside of its storages", path_));
    if (size > 0) file_->read(at, found->second->tensor.mutable_data_ptr(), static_cast<size_t>(size));
    at += static_cast<uint64_t>(size);
    ++filled;
  }
  if (filled != storages_.size())
    throw Error("weights", fmt::format("{} is damaged: it lacks {} of {} storages", path_, storages_.size() - filled,
                                       storages_.size()));
  // Once more, now that the elements are there.
  root_ = Unpickler(document_, bytes.substr(object), find_storage).read();
  storage_bytes_ = nullptr;
}

/// `id`: ("storage", type, key, device, number of elements), in the older format also a part of it, or None.
PickleValue* TorchFile::make_storage(const PickleValue& id) {
  const auto damaged = [&](const std::string& what) {
    return Error("weights", fmt::format("{} is damaged: {}", path_, what));
  };
  // Of a module's class, before 1.6: ("module", class, file, source).
  if (id.is(Kind::kTuple) && id.items.size() == 4 && id.items[0]->text == "module") return id.items[1];
  if (!id.is(Kind::kTuple) || id.items.size() < 5 || id.items[0]->text != "storage" || !id.items[2]->is(Kind::kText) ||
      !id.items[4]->is(Kind::kInt))
    throw damaged("a tensor does not say where its elements are");
  if (storage_bytes_ == nullptr) throw damaged("a storage where none can be");
  if (id.items.size() > 5 && !id.items[5]->is(Kind::kNone))
    throw Error("weights", fmt::format("{} holds a view of a storage, as PyTorch saved before 0.4; hint: load and save "
                                       "it again in Python",
                                       path_));
  const std::string& key = id.items[2]->text;
  const auto item = static_cast<int64_t>(c10::elementSize(torch_type(id.items[1]->text)));
  const int64_t elements = id.items[4]->integer;
  if (elements < 0 || elements > static_cast<int64_t>(bytes_->size()) / item)
    throw damaged(fmt::format("the storage '{}' of {} elements does not fit into the file", key, elements));
  auto& storage = storages_[key];
  if (storage != nullptr) {
    if (storage->integer != elements * item || storage->text != id.items[1]->text)
      throw damaged(fmt::format("the storage '{}' has two types or sizes", key));
    return storage;
  }
  PickleValue* const made = document_.text(id.items[1]->text, Kind::kStorage);
  made->integer = elements * item;
  made->tensor = storage_bytes_(key, made->integer);
  return storage = made;
}

void TorchFile::read_elements(const at::Tensor& tensor, int64_t offset, const at::Tensor& target) const {
  if (target.numel() == 0) return;
  const auto* const source = static_cast<const char*>(tensor.const_data_ptr()) + offset * tensor.element_size();
  if (bytes_->contains(source))
    file_->read(static_cast<uint64_t>(source - bytes_->data()), target.mutable_data_ptr(), target.nbytes());
  else
    std::memcpy(target.mutable_data_ptr(), source, target.nbytes());
}

}  // namespace levin
