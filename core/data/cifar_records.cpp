#include <levin/core/data/cifar_records.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace levin::data {

at::Tensor read_cifar_records(const std::string& folder, const std::string& file, const CifarFormat& format) {
  const auto num_labels = std::ssize(format.num_classes);
  const int64_t record_bytes = num_labels + 3 * 32 * 32;
  const auto path = std::filesystem::path(folder) / file;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw Error("data",
                fmt::format("there is no {} in the folder {}; hint: unpack the binary version of {} and set root "
                            "to its folder {}",
                            file, folder, format.name, format.folder));
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  if (bytes == 0 || bytes % record_bytes != 0)
    throw Error("data", fmt::format("{} is truncated or not a {} file: expected a multiple of {} bytes, found {}",
                                    path.string(), format.name, record_bytes, bytes));
  at::Tensor records = at::empty({bytes / record_bytes, record_bytes}, at::kByte);
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(records.mutable_data_ptr<uint8_t>()), bytes))
    throw Error("data", fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  const auto* data = records.const_data_ptr<uint8_t>();
  for (int64_t record = 0; record < records.size(0); ++record) {
    for (int64_t place = 0; place < num_labels; ++place) {
      const uint8_t label = data[record * record_bytes + place];
      const int64_t num_classes = format.num_classes[static_cast<size_t>(place)];
      if (label >= num_classes)
        throw Error("data", fmt::format("{} is not a {} file: record {} has the label {}, valid: 0 to {}",
                                        path.string(), format.name, record, label, num_classes - 1));
    }
  }
  return records;
}

}  // namespace levin::data
