#include <levin/core/comm/gather_on_first.h>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace levin {
namespace {

/// Apart from those that strategies use between the same ranks.
constexpr int64_t kSizesTag = int64_t{1} << 29;
constexpr int64_t kBytesTag = kSizesTag + 1;

void send_texts(Collective& ranks, const std::vector<std::string>& texts, int64_t to) {
  const at::Tensor sizes = at::empty({std::ssize(texts)}, at::kLong);
  std::transform(texts.begin(), texts.end(), sizes.mutable_data_ptr<int64_t>(),
                 [](const std::string& text) { return std::ssize(text); });
  const int64_t* const size = sizes.const_data_ptr<int64_t>();
  const at::Tensor bytes = at::empty({std::accumulate(size, size + texts.size(), int64_t{0})}, at::kByte);
  auto* place = bytes.mutable_data_ptr<uint8_t>();
  for (const std::string& text : texts) place = std::copy(text.begin(), text.end(), place);
  ranks.send(sizes, to, kSizesTag)->wait();
  ranks.send(bytes, to, kBytesTag)->wait();
}

/// Adds so many texts of another rank.
void receive_texts(Collective& ranks, int64_t count, int64_t from, std::vector<std::string>& texts) {
  const at::Tensor sizes = at::empty({count}, at::kLong);
  ranks.receive(sizes, from, kSizesTag)->wait();
  const int64_t* const size = sizes.const_data_ptr<int64_t>();
  const at::Tensor bytes = at::empty({std::accumulate(size, size + count, int64_t{0})}, at::kByte);
  ranks.receive(bytes, from, kBytesTag)->wait();
  const auto* place = static_cast<const char*>(bytes.const_data_ptr());
  for (int64_t i = 0; i < count; place += size[i++]) texts.emplace_back(place, static_cast<size_t>(size[i]));
}

}  // namespace

std::vector<std::string> gather_bytes_on_first(Collective& ranks, const std::string& bytes) {
  const int64_t rank = ranks.rank();
  const int64_t count = ranks.world_size();
  if (count <= kFewRanks) {
    auto all = ranks.gather_bytes(bytes);
    return rank == 0 ? std::move(all) : std::vector<std::string>();
  }
  const c10::InferenceMode ordinary(false);
  // What this rank has of its own and of the ranks behind it: as many as `step` says, until it passes them on.
  std::vector<std::string> texts{bytes};
  for (int64_t step = 1; step < count; step *= 2) {
    if ((rank & step) != 0) {
      send_texts(ranks, texts, rank - step);
      return {};
    }
    const int64_t from = rank + step;
    if (from < count) receive_texts(ranks, std::min(step, count - from), from, texts);
  }
  return texts;
}

}  // namespace levin
