#include <levin/core/data/shards/tar_samples.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/data/arrays/numpy_file.h>
#include <levin/core/data/data_notes.h>
#include <levin/core/data/example_stack.h>
#include <levin/core/data/fetch_trace.h>
#include <levin/core/data/shards/tar_index.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

namespace levin::data {

namespace {

constexpr std::string_view kKeyField = "__key__";  ///< in the place of endings: the sample's name

std::vector<std::string> split_endings(const std::string& text) {
  std::vector<std::string> endings;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    std::string ending = text.substr(begin, end - begin);
    if (ending.starts_with('.')) ending.erase(0, 1);
    if (!ending.empty()) endings.push_back(ending);
    begin = end + 1;
  }
  return endings;
}

/// A sample's name and the ending of one of its files, in small letters.
std::pair<std::string_view, std::string> split_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == std::string_view::npos ? 0 : slash + 1);
  if (dot == std::string_view::npos) return {name, ""};
  std::string ending(name.substr(dot + 1));
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  return {name.substr(0, dot), std::move(ending)};
}

}  // namespace

/// The files that one batch is read from.
class TarSamples::OpenShards {
 public:
  explicit OpenShards(const TarSamples& samples) : samples_(samples) {}

  /// Has the system fetch what a batch will read, all of it at once, where it is not in memory yet.
  void announce(std::span<const int64_t> indices) {
    for (const int64_t index : indices) {
      if (index < 0 || index >= samples_.size()) continue;
      for (size_t field = 0; field < samples_.fields_.size(); ++field) {
        const Place& place = samples_.place(index, field);
        if (place.size == 0) continue;  // which would stand for all of the file
        ::posix_fadvise(file_of(index), place.offset, place.size, POSIX_FADV_WILLNEED);
      }
    }
  }

  /// Reads the bytes of a field.
  void read(int64_t index, size_t field, void* target) {
    const Place& place = samples_.place(index, field);
    const int file = file_of(index);
    int64_t done = 0;
    while (done < place.size) {
      const ssize_t got =
          ::pread(file, static_cast<char*>(target) + done, static_cast<size_t>(place.size - done), place.offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        throw Error("data", fmt::format("cannot read {}: {}", samples_.name_of(index, field),
                                        got < 0 ? std::strerror(errno) : "the file was cut off meanwhile"));
      done += got;
    }
  }

 private:
  int file_of(int64_t index) {
    const int64_t shard = samples_.shard_of(index);
    auto [found, is_new] = files_.try_emplace(shard);
    if (is_new) found->second = open_regular_file(samples_.paths_[static_cast<size_t>(shard)], "data");
    return found->second.number();
  }

  const TarSamples& samples_;
  std::map<int64_t, Descriptor> files_;
};

TarSamples::TarSamples(std::vector<std::string> paths, TarSamplesOptions options)
    : paths_(std::move(paths)), options_(std::move(options)) {
  if (options_.fields.empty()) throw Error("data", "tar files are read without fields; hint: {\"label\", \"cls\"}");
  for (const auto& [name, endings] : options_.fields) {
    fields_.push_back({name, split_endings(endings)});
    if (fields_.back().endings.empty())
      throw Error("data", fmt::format("the field '{}' has no endings; hint: 'jpg;png'", name));
  }
  for (const std::string& path : paths_) add_shard(path);
  if (keys_.empty()) throw Error("data", "there are no tar files");
}

TarSamples::Kind TarSamples::kind_of(std::string_view ending) {
  const std::string_view last = ending.substr(ending.rfind('.') + 1);
  for (const char* image : {"jpg", "jpeg", "png", "webp"})
    if (last == image) return Kind::kImage;
  for (const char* number : {"cls", "index", "id", "count"})
    if (last == number) return Kind::kNumber;
  for (const char* text : {"txt", "text", "transcript", "json"})
    if (last == text) return Kind::kText;
  return last == "npy" ? Kind::kArray : Kind::kBytes;
}

void TarSamples::add_shard(const std::string& path) {
  const size_t before = keys_.size();
  shard_versions_.push_back(version_of_file(path));
  shard_sources_.push_back(whole_path(path));
  std::set<std::string> endings;  // of the sample that is read
  for (const TarMember& member : index_tar(path)) {
    const auto [key, ending] = split_name(member.name);
    // As WebDataset has it, README and macOS's ._000.jpg are of no sample.
    if (ending.empty() || key.empty() || key.back() == '/') continue;
    const bool is_new = keys_.size() == before || keys_.back() != key;
    if (is_new) {
      if (keys_.size() > before) check_sample(path);
      keys_.emplace_back(key);
      places_.resize(places_.size() + fields_.size());
      for (size_t field = 0; field < fields_.size(); ++field)
        if (fields_[field].endings.front() == kKeyField)
          places_[places_.size() - fields_.size() + field] = {.kind = Kind::kKey, .ending = 0};
      endings.clear();
    }
    if (!endings.insert(ending).second)
      throw Error("data", fmt::format("the tar file {} has two files '{}' in one sample", path, member.name));
    Place* of_sample = places_.data() + places_.size() - fields_.size();
    for (size_t field = 0; field < fields_.size(); ++field) {
      const auto& known = fields_[field].endings;
      const auto found = std::find(known.begin(), known.end(), ending);
      const auto rank = static_cast<int32_t>(found - known.begin());
      if (found == known.end() || (of_sample[field].ending >= 0 && of_sample[field].ending < rank)) continue;
      of_sample[field] = {.offset = member.offset, .size = member.size, .kind = kind_of(ending), .ending = rank};
    }
  }
  if (keys_.size() == before) throw Error("data", fmt::format("the tar file {} has no samples", path));
  check_sample(path);
  shard_sizes_.push_back(static_cast<int64_t>(keys_.size() - before));
  shard_ends_.push_back(static_cast<int64_t>(keys_.size()));
}

/// Throws where the last sample lacks a field.
void TarSamples::check_sample(const std::string& path) const {
  for (size_t field = 0; field < fields_.size(); ++field)
    if (place(size() - 1, field).ending < 0)
      throw Error("data",
                  fmt::format("the sample '{}' of {} has no file for '{}'; valid endings: {}; hint: data.fields",
                              keys_.back(), path, fields_[field].name, join(fields_[field].endings)));
}

int64_t TarSamples::shard_of(int64_t index) const {
  return std::upper_bound(shard_ends_.begin(), shard_ends_.end(), index) - shard_ends_.begin();
}

std::string TarSamples::name_of(int64_t index, size_t field) const {
  const Field& known = fields_[field];
  return fmt::format("{}.{} in {}", key(index), known.endings[static_cast<size_t>(place(index, field).ending)],
                     paths_[static_cast<size_t>(shard_of(index))]);
}

int64_t TarSamples::number(int64_t index, size_t field, OpenShards& shards) const {
  constexpr int64_t kMostDigits = 64;
  const int64_t size = place(index, field).size;
  std::string bytes(static_cast<size_t>(std::min(size, kMostDigits)), '\0');
  int64_t value = 0;
  bool is_number = size <= kMostDigits;
  if (is_number) {
    shards.read(index, field, bytes.data());
    std::string_view text = bytes;
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    is_number = error == std::errc() && end == text.data() + text.size();
  }
  if (!is_number) throw Error("data", fmt::format("{} is no whole number; got '{}'", name_of(index, field), bytes));
  const std::string_view ending = fields_[field].endings[static_cast<size_t>(place(index, field).ending)];
  if (options_.num_classes && ending.ends_with("cls") && (value < 0 || value >= *options_.num_classes))
    throw Error("data", fmt::format("{} is no class; got {}; valid: 0 to {}", name_of(index, field), value,
                                    *options_.num_classes - 1));
  return value;
}

Batch TarSamples::example(int64_t index, Generator& generator, OpenShards& shards) const {
  if (index < 0 || index >= size())
    throw Error("data", fmt::format("there is no sample {}; the tar files have {}", index, size()));
  Batch example;
  for (size_t field = 0; field < fields_.size(); ++field) {
    const Place& at = place(index, field);
    if (at.kind == Kind::kNumber) {
      example.set(fields_[field].name, at::scalar_tensor(number(index, field, shards), at::kLong));
      continue;
    }
    if (at.kind == Kind::kKey) {
      example.set_texts(fields_[field].name, {key(index)});
      continue;
    }
    if (at.kind == Kind::kText) {
      std::string text(static_cast<size_t>(at.size), '\0');
      shards.read(index, field, text.data());
      example.set_texts(fields_[field].name, {std::move(text)});
      continue;
    }
    if (at.kind == Kind::kBytes) {
      at::Tensor bytes = at::empty({at.size}, at::kByte);
      shards.read(index, field, bytes.mutable_data_ptr());
      example.set(fields_[field].name, bytes);
      continue;
    }
    const std::unique_ptr<char[]> bytes(new char[static_cast<size_t>(at.size)]);
    shards.read(index, field, bytes.get());
    const std::string_view content(bytes.get(), static_cast<size_t>(at.size));
    const std::string name = name_of(index, field);
    example.set(fields_[field].name,
                at.kind == Kind::kImage ? decode_image(content, name, options_.max_pixels) : parse_npy(content, name));
  }
  apply_transforms(options_.transforms, example, generator);
  if (!options_.keep_bytes) bytes_to_float(example);
  return example;
}

ExampleKey TarSamples::cache_key(int64_t index) const {
  if (index < 0 || index >= size()) return {};
  const auto shard = static_cast<size_t>(shard_of(index));
  ExampleKey made_of{.source = fmt::format("{}/{}", shard_sources_[shard], key(index)),
                     .version = shard_versions_[shard]};
  // A key may be there twice.
  const Place* const places = places_.data() + static_cast<size_t>(index) * fields_.size();
  for (size_t field = 0; field < fields_.size(); ++field) made_of.version += fmt::format("{} ", places[field].offset);
  for (const auto& [name, endings] : options_.fields) made_of.version += fmt::format("{}: {}\n", name, endings);
  return made_of;
}

Batch TarSamples::get(int64_t index, Generator& generator) const {
  OpenShards shards(*this);
  return example(index, generator, shards);
}

/// Whether the fields are numbers, and bytes of which each sample has as many, so that they are read into the batch.
bool TarSamples::reads_whole_batches(std::span<const int64_t> indices) const {
  if (indices.empty() || !options_.transforms.empty()) return false;
  for (const int64_t index : indices) {
    if (index < 0 || index >= size()) return false;
    for (size_t field = 0; field < fields_.size(); ++field) {
      const Place& at = place(index, field);
      const Place& first = place(indices.front(), field);
      if (at.kind != first.kind || (at.kind != Kind::kNumber && at.kind != Kind::kBytes)) return false;
      if (at.kind == Kind::kBytes && at.size != first.size) return false;
    }
  }
  return true;
}

Batch TarSamples::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  OpenShards shards(*this);
  shards.announce(indices);
  const auto count = static_cast<int64_t>(indices.size());
  if (!reads_whole_batches(indices)) {
    ExampleStack stack(count);
    for (const int64_t index : indices)
      stack.add(noting_errors(
          [&] {
            Generator of_sample = generator.for_sample(index);
            FetchTrace::begin_example(index);
            return example(index, of_sample, shards);
          },
          [&](ErrorNotes& notes) {
            note_data(notes, "get", typeid(*this), {&index, 1});
          }));
    return stack.finish();
  }
  Batch batch;
  for (size_t field = 0; field < fields_.size(); ++field) {
    const Place& first = place(indices.front(), field);
    const bool is_number = first.kind == Kind::kNumber;
    at::Tensor values = is_number ? at::empty({count}, at::kLong) : at::empty({count, first.size}, at::kByte);
    for (int64_t row = 0; row < count; ++row) {
      const int64_t index = indices[static_cast<size_t>(row)];
      if (is_number)
        values.mutable_data_ptr<int64_t>()[row] = number(index, field, shards);
      else
        shards.read(index, field, values.mutable_data_ptr<uint8_t>() + row * first.size);
    }
    batch.set(fields_[field].name, std::move(values));
  }
  return batch;
}

}  // namespace levin::data
