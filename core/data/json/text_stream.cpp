#include <levin/core/data/json/text_stream.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

/// Bytes that are read from a packed file at a time.
constexpr size_t kPackedBuffer = size_t{1} << 17;
/// Largest window that is unpacked, 32 MiB: what a file may make a program hold in memory. `zstd -19` has 8 MiB.
constexpr int kMostWindowLog = 25;

}  // namespace

class TextStream::Source {
 public:
  explicit Source(const std::string& path) : path_(path), file_(open_regular_file(path, "data")) {}
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual size_t read(char* bytes, size_t size) = 0;

 protected:
  size_t read_file(char* bytes, size_t size) {
    for (;;) {
      const ssize_t got = ::read(file_.number(), bytes, size);
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EINTR) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    }
  }
  [[noreturn]] void fail(const std::string& what) const { throw Error("data", fmt::format("{} {}", path_, what)); }

 private:
  std::string path_;
  Descriptor file_;
};

class TextStream::Plain : public Source {
 public:
  using Source::Source;
  size_t read(char* bytes, size_t size) override { return read_file(bytes, size); }
};

class TextStream::Gzip : public Source {
 public:
  explicit Gzip(const std::string& path) : Source(path), packed_(kPackedBuffer) {
    // 16 more than the largest window: with gzip's header.
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) fail("cannot be unpacked: zlib does not start");
  }
  ~Gzip() override { inflateEnd(&stream_); }

  size_t read(char* bytes, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(bytes);
    stream_.avail_out = static_cast<uInt>(std::min(size, size_t{1} << 30));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) {
        stream_.avail_in = static_cast<uInt>(read_file(packed_.data(), packed_.size()));
        stream_.next_in = reinterpret_cast<Bytef*>(packed_.data());
        if (stream_.avail_in == 0) {
          if (is_inside_) fail("is cut off: gzip's data end in the middle");
          return 0;
        }
      }
      // Several gzip files one behind the other are one.
      if (!std::exchange(is_inside_, true)) inflateReset(&stream_);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END)
        is_inside_ = false;
      else if (result != Z_OK && result != Z_BUF_ERROR)
        fail(fmt::format("is damaged: gzip's data cannot be unpacked ({})",
                         stream_.msg == nullptr ? zError(result) : stream_.msg));
    }
    return wanted - stream_.avail_out;
  }

 private:
  std::vector<char> packed_;
  z_stream stream_{};
  bool is_inside_ = false;
};

class TextStream::Zstandard : public Source {
 public:
  explicit Zstandard(const std::string& path) : Source(path), packed_(kPackedBuffer), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) fail("cannot be unpacked: zstd does not start");
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kMostWindowLog);
  }
  ~Zstandard() override { ZSTD_freeDStream(stream_); }

  size_t read(char* bytes, size_t size) override {
    ZSTD_outBuffer out{bytes, size, 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size && !has_more_) {
        in_ = {packed_.data(), read_file(packed_.data(), packed_.size()), 0};
        if (in_.size == 0) {
          if (is_inside_) fail("is cut off: zstd's data end in the middle");
          return 0;
        }
      }
      const size_t result = ZSTD_decompressStream(stream_, &out, &in_);
      if (ZSTD_isError(result) != 0)
        fail(fmt::format("cannot be unpacked: {}; hint: zstd without --long and --ultra, or zstd -t shows the damage",
                         ZSTD_getErrorName(result)));
      is_inside_ = result != 0;
      has_more_ = out.pos == out.size && is_inside_;
    }
    return out.pos;
  }

 private:
  std::vector<char> packed_;
  ZSTD_DStream* stream_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool is_inside_ = false;
  bool has_more_ = false;  ///< unpacked bytes that did not fit
};

TextStream::TextStream(const std::string& path) {
  const Descriptor file = open_regular_file(path, "data");
  std::array<char, 4> first{};
  const ssize_t got = ::pread(file.number(), first.data(), first.size(), 0);
  const std::string_view magic(first.data(), got > 0 ? static_cast<size_t>(got) : 0);
  if (magic.starts_with("\x1f\x8b"))
    source_ = std::make_unique<Gzip>(path);
  else if (magic == "\x28\xb5\x2f\xfd")
    source_ = std::make_unique<Zstandard>(path);
  else
    source_ = std::make_unique<Plain>(path);
}

TextStream::~TextStream() = default;

size_t TextStream::read(char* bytes, size_t size) { return source_->read(bytes, size); }
bool TextStream::is_packed() const { return dynamic_cast<const Plain*>(source_.get()) == nullptr; }

}  // namespace levin::data
