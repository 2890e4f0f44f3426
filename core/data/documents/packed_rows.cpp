#include <levin/core/data/documents/packed_rows.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

namespace levin::data {

namespace {

constexpr std::array<char, 16> kPackedMagic = {'l', 'e', 'v', 'i', 'n', ' ', 'p', 'a',
                                               'c', 'k', 'e', 'd', ' ', '1', '\n'};
/// Places of a window at most, and of the rows that stay open.
constexpr int64_t kMostWindowPlaces = int64_t{1} << 19;
constexpr int64_t kMostOpenPlaces = int64_t{1} << 18;
/// Documents that are read and encoded at a time.
constexpr int64_t kChunk = 256;

/// Marks a token that begins a document; ids have 30 bits.
constexpr int32_t kBegins = int32_t{1} << 30;
constexpr int32_t kPadding = -1;

struct PackedHeader {
  std::array<char, 16> magic = {};
  int64_t context = 0;
  PackingCounts counts = {};
};
static_assert(sizeof(PackedHeader) == 64 && sizeof(RowPacker::Place) == 8);

int64_t bytes_of_row(int64_t context) { return context * static_cast<int64_t>(sizeof(RowPacker::Place)); }

/// The pieces of a document, none where nothing of it is learned.
std::vector<RowPacker::Piece> pieces_of(const TokenDocument& document, const PackingOptions& options,
                                        PackingCounts& counts) {
  const int64_t places = std::ssize(document.tokens) - 1;  // the last token is followed by none
  const bool is_too_long = places > options.context;
  if (is_too_long) ++counts.too_long;
  const int64_t end = options.long_documents == LongDocuments::kSplit ? places : std::min(places, options.context);
  std::vector<RowPacker::Piece> pieces;
  bool has_learned = false;
  for (int64_t begin = 0; begin < end; begin += options.context) {
    RowPacker::Piece piece;
    bool is_learned = false;
    for (int64_t i = begin; i < std::min(end, begin + options.context); ++i) {
      const auto place = static_cast<size_t>(i);
      const bool counts_here = document.is_learned[place + 1];
      is_learned = is_learned || counts_here;
      piece.push_back({.token = document.tokens[place],
                       .next = counts_here ? document.tokens[place + 1] : static_cast<int32_t>(kIgnoredToken)});
    }
    if (!is_learned) continue;
    has_learned = true;
    pieces.push_back(std::move(piece));
  }
  if (!has_learned) ++counts.unlearned;
  return pieces;
}

std::string percent(int64_t part, int64_t whole) {
  return fmt::format("{:.2f} %", whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

/// Writes rows one behind the other.
class RowWriter {
 public:
  RowWriter(const std::string& path, int64_t context) : file_(FileSystem::current().create(path)), context_(context) {
    const PackedHeader nothing;
    file_->append(&nothing, sizeof(nothing));
  }
  void write(const std::vector<RowPacker::Row>& rows, PackingCounts& counts) {
    for (const RowPacker::Row& row : rows) {
      places_.clear();
      for (const RowPacker::Piece& piece : row) {
        places_.insert(places_.end(), piece.begin(), piece.end());
        places_[places_.size() - piece.size()].token |= kBegins;
      }
      counts.filled += std::ssize(places_);
      places_.resize(static_cast<size_t>(context_), {.token = kPadding, .next = static_cast<int32_t>(kIgnoredToken)});
      file_->append(places_.data(), places_.size() * sizeof(RowPacker::Place));
      ++counts.rows;
    }
  }
  void close() { file_->close(); }

 private:
  std::unique_ptr<WritableFile> file_;
  int64_t context_;
  std::vector<RowPacker::Place> places_;
};

/// Documents that are read ahead, some at a time, by the threads of LibTorch's operators.
class DocumentReader {
 public:
  explicit DocumentReader(const TokenDocuments& documents) : documents_(documents) {}
  /// Returns the next document, which lives until the one after it; nullptr at the end.
  const TokenDocument* next() {
    if (place_ == chunk_.size()) read();
    return place_ == chunk_.size() ? nullptr : &chunk_[place_++];
  }

 private:
  void read() {
    const int64_t count = std::min(kChunk, documents_.size() - read_);
    chunk_.assign(static_cast<size_t>(count), {});
    at::parallel_for(0, count, /*grain_size=*/8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) chunk_[static_cast<size_t>(i)] = documents_.get(read_ + i);
    });
    read_ += count;
    place_ = 0;
  }

  const TokenDocuments& documents_;
  std::vector<TokenDocument> chunk_;
  size_t place_ = 0;
  int64_t read_ = 0;
};

}  // namespace

std::vector<RowPacker::Row> RowPacker::add(std::vector<Piece> window) {
  std::vector<size_t> by_length(window.size());
  std::iota(by_length.begin(), by_length.end(), size_t{0});
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](size_t a, size_t b) { return window[a].size() > window[b].size(); });
  for (const size_t place : by_length) {
    Piece& piece = window[place];
    const auto length = std::ssize(piece);
    auto row = std::find_if(open_.begin(), open_.end(), [length](const OpenRow& one) { return one.room >= length; });
    if (row == open_.end()) row = open_.insert(open_.end(), {.room = context_});
    row->room -= length;
    row->pieces.push_back(std::move(piece));
  }
  // The fullest are complete, beyond those that may stay open.
  const auto most_open = static_cast<size_t>(std::max<int64_t>(kMostOpenPlaces / context_, 1));
  std::vector<int64_t> rooms;
  for (const OpenRow& row : open_) rooms.push_back(row.room);
  int64_t least_room = 1;
  if (rooms.size() > most_open) {
    std::nth_element(rooms.begin(), rooms.begin() + static_cast<std::ptrdiff_t>(most_open), rooms.end(),
                     std::greater<>());
    least_room = std::max<int64_t>(rooms[most_open] + 1, 1);
  }
  std::vector<Row> complete;
  std::vector<OpenRow> left;
  for (OpenRow& row : open_) {
    if (row.room < least_room)
      complete.push_back(std::move(row.pieces));
    else
      left.push_back(std::move(row));
  }
  open_ = std::move(left);
  return complete;
}

std::vector<RowPacker::Row> RowPacker::finish() {
  std::vector<Row> rows;
  for (OpenRow& row : open_) rows.push_back(std::move(row.pieces));
  open_.clear();
  return rows;
}

void PackedRows::make(const std::string& path, const TokenDocuments& documents, const PackingOptions& options) {
  static std::atomic<int64_t> next_file{0};
  const std::string pending = fmt::format("{}.{}.{}", path, getpid(), next_file++);
  try {
    PackedHeader header{.magic = kPackedMagic, .context = options.context};
    PackingCounts& counts = header.counts;
    RowWriter writer(pending, options.context);
    RowPacker packer(options.context);
    std::vector<RowPacker::Piece> window;
    int64_t window_documents = 0;
    int64_t window_places = 0;
    const auto pack_window = [&] {
      writer.write(packer.add(std::exchange(window, {})), counts);
      window_documents = window_places = 0;
    };
    DocumentReader reader(documents);
    auto next_report = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (const TokenDocument* document = reader.next()) {
      if (options.long_documents == LongDocuments::kRefuse && std::ssize(document->tokens) - 1 > options.context)
        throw Error("data", fmt::format("{}: the document has {} tokens, more than the context of {} and the next one; "
                                        "hint: a longer context, or long_documents: truncate or split",
                                        documents.place(counts.documents), document->tokens.size(), options.context));
      ++counts.documents;
      for (RowPacker::Piece& piece : pieces_of(*document, options, counts)) {
        window_places += std::ssize(piece);
        window.push_back(std::move(piece));
        if (window_places >= kMostWindowPlaces) pack_window();
      }
      if (++window_documents >= options.window) pack_window();
      if (counts.documents % kChunk == 0 && std::chrono::steady_clock::now() >= next_report) {
        next_report += std::chrono::seconds(10);
        log::info(fmt::format("packing documents: {} of {} so far", counts.documents, documents.size()));
      }
    }
    pack_window();
    writer.write(packer.finish(), counts);
    writer.close();
    if (counts.rows == 0)
      throw Error("data",
                  fmt::format("none of {} documents has a token to learn within {} tokens; hint: a longer context",
                              counts.documents, options.context));
    const Descriptor file(::open(pending.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file.is_open() || ::pwrite(file.number(), &header, sizeof(header), 0) != sizeof(header) ||
        ::fsync(file.number()) != 0)
      throw Error("data", fmt::format("cannot write {}: {}", pending, std::strerror(errno)));
    FileSystem::current().rename(pending, path);
    const int64_t places = counts.rows * options.context;
    std::string message =
        fmt::format("packed {} documents into {} rows of {} tokens, {} of them padding", counts.documents, counts.rows,
                    options.context, percent(places - counts.filled, places));
    if (counts.too_long > 0)
      message += fmt::format("; {} longer than a row {} {}", counts.too_long, counts.too_long == 1 ? "was" : "were",
                             options.long_documents == LongDocuments::kSplit ? "split" : "truncated");
    if (counts.unlearned > 0)
      message += fmt::format("; {} without a token to learn {} left out", counts.unlearned,
                             counts.unlearned == 1 ? "was" : "were");
    log::info(message);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(pending, ignored);
    throw;
  }
}

PackedRows::PackedRows(const std::string& path, int64_t context)
    : path_(path), context_(context), file_(open_regular_file(path, "data")) {
  PackedHeader header;
  struct stat status {};
  if (::pread(file_.number(), &header, sizeof(header), 0) != sizeof(header) || header.magic != kPackedMagic ||
      header.context != context || header.counts.rows < 1 || ::fstat(file_.number(), &status) != 0 ||
      (status.st_size - static_cast<int64_t>(sizeof(header))) / bytes_of_row(context) != header.counts.rows)
    throw Error("data", fmt::format("the packed rows {} are damaged; hint: remove the file, it is made again", path));
  counts_ = header.counts;
}

Batch PackedRows::get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const {
  const auto count = std::ssize(indices);
  at::Tensor tokens = at::empty({count, context_}, at::kLong);
  at::Tensor next = at::empty({count, context_}, at::kLong);
  at::Tensor positions = at::empty({count, context_}, at::kLong);
  std::vector<RowPacker::Place> places(static_cast<size_t>(context_));
  for (int64_t row = 0; row < count; ++row) {
    const int64_t index = indices[static_cast<size_t>(row)];
    if (index < 0 || index >= size())
      throw Error("data", fmt::format("there is no row {}; the packed rows are {}", index, size()));
    const auto bytes = static_cast<size_t>(bytes_of_row(context_));
    const int64_t offset = static_cast<int64_t>(sizeof(PackedHeader)) + index * bytes_of_row(context_);
    size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::pread(file_.number(), reinterpret_cast<char*>(places.data()) + done, bytes - done,
                                  offset + static_cast<int64_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        throw Error("data", fmt::format("the packed rows {} cannot be read: {}", path_,
                                        got == 0 ? "the file has become shorter" : std::strerror(errno)));
      done += static_cast<size_t>(got);
    }
    int64_t position = -1;
    for (int64_t place = 0; place < context_; ++place) {
      const auto [token, follower] = places[static_cast<size_t>(place)];
      const bool is_padding = token == kPadding;
      position = is_padding ? -1 : (token & kBegins) != 0 ? 0 : position + 1;
      const int64_t at = row * context_ + place;
      tokens.mutable_data_ptr<int64_t>()[at] = is_padding ? 0 : token & ~kBegins;
      next.mutable_data_ptr<int64_t>()[at] = follower;
      positions.mutable_data_ptr<int64_t>()[at] = position;
    }
  }
  return {{"tokens", std::move(tokens)}, {"next", std::move(next)}, {"positions", std::move(positions)}};
}

}  // namespace levin::data
