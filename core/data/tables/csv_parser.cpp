#include <levin/core/data/tables/csv_parser.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <csv.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>

namespace levin::data {

namespace {

/// What the callbacks of libcsv, which is C, are told and tell.
struct Progress {
  CsvHandler* handler = nullptr;
  int64_t line = 1;      ///< of what comes next
  int64_t row_line = 1;  ///< where the row begins
  int64_t fields = 0;    ///< of the row so far
  bool after_return = false;
  bool has_quotes = false;  ///< fields may have line ends: there are quotes in this chunk or the one before
  std::exception_ptr error = nullptr;
};

extern "C" {

static void levin_csv_field(void* text, size_t size, void* data) {
  auto& progress = *static_cast<Progress*>(data);
  if (progress.error) return;
  const std::string_view field(static_cast<const char*>(text), size);
  if (progress.fields++ == 0) progress.row_line = progress.line;
  try {
    progress.handler->field(field, progress.row_line);
  } catch (...) {
    progress.error = std::current_exception();
  }
  if (progress.has_quotes) progress.line += std::count(field.begin(), field.end(), '\n');
}

static void levin_csv_row(int end, void* data) {
  auto& progress = *static_cast<Progress*>(data);
  if (progress.error) return;
  const bool ends_same_line = end == '\n' && progress.after_return && progress.fields == 0;
  progress.after_return = end == '\r';
  if (ends_same_line) return;
  if (progress.fields > 0) {
    try {
      progress.handler->end_row(progress.row_line);
    } catch (...) {
      progress.error = std::current_exception();
    }
  }
  progress.fields = 0;
  ++progress.line;
}

}  // extern "C"

}  // namespace

void parse_csv(const std::string& path, char delimiter, CsvHandler& handler) {
  const Descriptor file = open_regular_file(path, "data");
  csv_parser parser{};
  // Strict: a quote in a field without quotes is an error, not a part of it. Line ends are all reported, to be counted.
  if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI | CSV_REPALL_NL) != 0)
    throw Error("data", "the CSV parser could not be set up");
  const std::unique_ptr<csv_parser, void (*)(csv_parser*)> freeing(&parser, csv_free);
  csv_set_delim(&parser, static_cast<unsigned char>(delimiter));
  Progress progress{.handler = &handler};

  constexpr size_t kChunk = size_t{1} << 18;
  const std::unique_ptr<char[]> chunk(new char[kChunk]);
  int64_t lines_before = 0;
  bool had_quotes = false;
  for (bool is_first = true;; is_first = false) {
    const ssize_t count = ::read(file.number(), chunk.get(), kChunk);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error("data", fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    if (count == 0) break;
    std::string_view text(chunk.get(), static_cast<size_t>(count));
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (is_first && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    const bool has_quotes = std::memchr(text.data(), CSV_QUOTE, text.size()) != nullptr;
    progress.has_quotes = has_quotes || had_quotes;
    had_quotes = has_quotes;
    const size_t parsed = csv_parse(&parser, text.data(), text.size(), levin_csv_field, levin_csv_row, &progress);
    if (progress.error) std::rethrow_exception(progress.error);
    if (parsed < text.size()) {
      if (csv_error(&parser) != CSV_EPARSE)
        throw Error("data", fmt::format("cannot read {}: {}", path, csv_strerror(csv_error(&parser))));
      const auto line =
          lines_before + 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(parsed), '\n');
      throw Error("data",
                  fmt::format("{}:{}: a quote is out of place; hint: a field with quotes in it stands in quotes, "
                              "and its own are doubled: \"a \"\"word\"\"\"",
                              path, line));
    }
    // Without quotes each line end was reported, and need not be counted again.
    lines_before = progress.has_quotes ? lines_before + std::count(text.begin(), text.end(), '\n') : progress.line - 1;
  }
  if (csv_fini(&parser, levin_csv_field, levin_csv_row, &progress) != 0)
    throw Error("data", fmt::format("{}:{}: a quote that begins in this row does not end before the file does", path,
                                    progress.fields > 0 ? progress.row_line : progress.line));
  if (progress.error) std::rethrow_exception(progress.error);
}

}  // namespace levin::data
