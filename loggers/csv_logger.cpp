#include <levin/loggers/csv_logger.h>

#include <levin/core/base/log.h>
#include <levin/loggers/logger_place.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace levin {
namespace {

// The columns that the trainer's counters have.
constexpr const char* kEpochColumn = "epoch";
constexpr const char* kStepColumn = "step";
constexpr std::chrono::seconds kLongestWait(1);
/// What is kept in memory while the disk takes nothing.
constexpr size_t kMostPendingBytes = 1 << 20;
constexpr size_t kEnoughPendingBytes = 1 << 16;

template <class Number>
void append_number(std::string& text, Number value) {
  std::array<char, 32> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  text.append(digits.data(), result.ptr);
}

void append_cell(std::string& text, double value) {
  if (std::isnan(value))
    text += "nan";  // to_chars would show the sign bit
  else
    append_number(text, value);
}

/// A counter, or the value that was given in its place.
void append_counter(std::string& text, int64_t counter, std::optional<double> given) {
  if (given)
    append_cell(text, *given);
  else
    append_number(text, counter);
}

/// Quotes a name where RFC 4180 asks for it.
void append_name(std::string& text, const std::string& name) {
  if (name.find_first_of(",\"\r\n") == std::string::npos) {
    text += name;
    return;
  }
  text += '"';
  for (const char c : name) {
    if (c == '"') text += '"';
    text += c;
  }
  text += '"';
}

/// The names in the first record, which the stream is then past; nothing when the record has no end.
std::optional<std::vector<std::string>> read_header(std::istream& file) {
  std::vector<std::string> names(1);
  bool quoted = false;
  for (char c = 0; file.get(c);) {
    if (c == '"') {
      // Two quotation marks inside a quoted name stand for one.
      if (quoted && file.peek() == '"')
        names.back() += static_cast<char>(file.get());
      else
        quoted = !quoted;
    } else if (quoted) {
      names.back() += c;
    } else if (c == ',') {
      names.emplace_back();
    } else if (c == '\n') {
      return names;
    } else if (c != '\r') {
      names.back() += c;
    }
  }
  return std::nullopt;
}

/// Reads whole rows up to a limit; the stream is then past them.
CsvLogger::Rows read_rows(std::istream& file, int64_t limit) {
  CsvLogger::Rows rows;
  for (std::string row; rows.count < limit && std::getline(file, row) && !file.eof();) rows.add(row);
  return rows;
}

/// Appends `cells` empty cells to every row of `rows`, which ends at a row's end or inside a row.
void append_widened(std::string& out, std::string_view rows, size_t cells) {
  while (!rows.empty()) {
    const size_t end = std::min(rows.find('\n'), rows.size());
    out += rows.substr(0, end);
    if (end == rows.size()) return;
    out.append(cells, ',');
    out += '\n';
    rows.remove_prefix(end + 1);
  }
}

}  // namespace

void CsvLoggerOptions::describe(Schema<CsvLoggerOptions>& schema) {
  describe_folder(schema);
  describe_prefix(schema);
  schema.field("flush_every", &CsvLoggerOptions::flush_every, "rows in memory before writing, at most").at_least(1);
}

CsvLogger::CsvLogger(const Options& options) : options_(options) {}

CsvLogger::~CsvLogger() { close(); }

void CsvLogger::Rows::add(std::string_view row) {
  ++count;
  bytes += row.size() + 1;
  const std::string_view values = row.substr(0, row.find_last_not_of(',') + 1);
  digest = XXH3_64bits_withSeed(values.data(), values.size(), digest);
}

void CsvLogger::start(const RunInfo& run) {
  close();
  guard_.reset();
  directory_ = run.directory;
  path_ = run.directory + "/metrics.csv";
  last_write_ = std::chrono::steady_clock::now();
  guard_.run(true, [this] { FileSystem::current().create_directories(directory_); });
  read_existing();
}

void CsvLogger::read_existing() {
  std::ifstream file(path_, std::ios::binary);
  if (!file.is_open()) {
    if (!FileSystem::current().exists(path_)) return;
    log::warning(
        fmt::format("CSV logger: {} cannot be read and is left as it is; no metrics are written there", path_));
    directory_.clear();
    return;
  }
  const auto names = read_header(file);
  torn_ = true;
  if (!names) return;
  const bool ours = names->size() >= 2 && names->at(0) == kEpochColumn && names->at(1) == kStepColumn &&
                    std::set<std::string>(names->begin(), names->end()).size() == names->size();
  if (!ours) {
    log::warning(fmt::format(
        "CSV logger: {} is not a file of metrics (its columns must be epoch,step and distinct names) and is left as it "
        "is; no metrics are written there",
        path_));
    directory_.clear();
    return;
  }
  for (size_t i = 2; i < names->size(); ++i) column_of(names->at(i));
  file_columns_ = names->size() - 2;
  header_size_ = file_size_ = static_cast<uint64_t>(file.tellg());

  logged_ = read_rows(file, std::numeric_limits<int64_t>::max());
  file_size_ += logged_.bytes;
  // A process that was killed may have left a part of a row at the end.
  file.clear();
  file.seekg(0, std::ios::end);
  torn_ = static_cast<uint64_t>(file.tellg()) != file_size_;
}

State CsvLogger::state_dict() const {
  if (directory_.empty() || logged_.count == 0) return {};
  State state = State::map();
  state["rows"] = logged_.count;
  state["digest"] = fmt::format("{:016x}", logged_.digest);
  return state;
}

void CsvLogger::load_state_dict(const State& state) {
  if (directory_.empty()) return;
  const int64_t rows = state.is_null() ? 0 : state.at("rows").as_int();
  if (rows >= logged_.count) return;
  if (rows == 0) return keep_first({});
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(header_size_));
  const Rows kept = read_rows(file, rows);
  if (kept.count == rows && fmt::format("{:016x}", kept.digest) == state.at("digest").as_string())
    keep_first(kept);
  else
    log::warning(
        fmt::format("CSV logger: {} does not begin with the {} rows that were logged before the checkpoint; "
                    "all of its rows are kept",
                    path_, rows));
}

void CsvLogger::keep_first(const Rows& kept) {
  log::info(
      fmt::format("CSV logger: the last {} rows of {} were logged after what this run goes on from, and are removed",
                  logged_.count - kept.count, path_));
  logged_ = kept;
  file_size_ = header_size_ + kept.bytes;
  file_.reset();
  torn_ = true;
  guard_.run(true, [this] { rewrite(); });
}

size_t CsvLogger::column_of(const std::string& name) {
  const auto [entry, added] = column_index_.try_emplace(name, columns_.size());
  if (added) {
    columns_.push_back(name);
    cells_.emplace_back();
    std::string widened;
    append_widened(widened, pending_, 1);
    pending_.swap(widened);
  }
  return entry->second;
}

void CsvLogger::log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) {
  if (directory_.empty()) return;
  ++row_;
  given_epoch_.reset();
  given_step_.reset();
  for (const auto& metric : values) {
    if (metric.name == kEpochColumn)
      given_epoch_ = metric.value;
    else if (metric.name == kStepColumn)
      given_step_ = metric.value;
    else
      cells_[column_of(metric.name)] = {metric.value, row_};
  }

  if (pending_.size() >= kMostPendingBytes)
    ++lost_rows_;
  else
    append_row(step, epoch);
  if (pending_rows_ >= options_.flush_every || pending_.size() >= kEnoughPendingBytes ||
      std::chrono::steady_clock::now() - last_write_ >= kLongestWait)
    write_pending(false);
}

void CsvLogger::append_row(int64_t step, int64_t epoch) {
  const size_t begin = pending_.size();
  append_counter(pending_, epoch, given_epoch_);
  pending_ += ',';
  append_counter(pending_, step, given_step_);
  for (const auto& cell : cells_) {
    pending_ += ',';
    if (cell.row == row_) append_cell(pending_, cell.value);
  }
  logged_.add(std::string_view(pending_).substr(begin));
  pending_ += '\n';
  ++pending_rows_;
}

void CsvLogger::log_hyperparameters(const Config& hyperparameters) {
  if (directory_.empty()) return;
  hyperparameters_ = hyperparameters.to_yaml();
  write_pending(false);
}

void CsvLogger::flush() {
  if (!directory_.empty()) write_pending(true);
}

void CsvLogger::finish(TrainerStatus /*status*/) { close(); }

void CsvLogger::close() {
  if (directory_.empty()) return;
  if (write_pending(true) && file_ != nullptr) guard_.run(true, [this] { file_->close(); });
  guard_.report_lost(lost_rows_ + pending_rows_, "rows of " + path_);
  directory_.clear();
  hyperparameters_.clear();
  columns_.clear();
  column_index_.clear();
  cells_.clear();
  pending_.clear();
  pending_rows_ = lost_rows_ = 0;
  logged_ = {};
  file_.reset();
  header_size_ = file_size_ = 0;
  file_columns_ = 0;
  torn_ = false;
}

bool CsvLogger::write_pending(bool now_or_never) {
  const bool written = guard_.run(now_or_never, [this] {
    if (!pending_.empty()) write_rows();
    if (!hyperparameters_.empty()) write_hyperparameters();
  });
  if (written) last_write_ = std::chrono::steady_clock::now();
  return written;
}

void CsvLogger::write_rows() {
  if (file_ == nullptr || file_columns_ != columns_.size()) open();
  // Should it fail on the way, the file is written anew before the next row.
  torn_ = true;
  auto file = std::move(file_);
  file->append(pending_);
  file->flush();
  file_ = std::move(file);
  torn_ = false;
  file_size_ += pending_.size();
  pending_.clear();
  pending_rows_ = 0;
}

void CsvLogger::write_hyperparameters() {
  auto& files = FileSystem::current();
  files.create_directories(directory_);
  files.replace_file(directory_ + "/hparams.yaml", hyperparameters_);
  hyperparameters_.clear();
}

void CsvLogger::open() {
  auto& files = FileSystem::current();
  file_.reset();
  files.create_directories(directory_);
  if (torn_ || file_columns_ != columns_.size() || file_size_ == 0) rewrite();
  file_ = files.open_append(path_);
}

void CsvLogger::rewrite() {
  const std::string new_header = header();
  uint64_t new_size = new_header.size();
  FileSystem::current().replace_file(path_, [&](WritableFile& out) {
    out.append(new_header);
    std::ifstream in(path_, std::ios::binary);
    in.seekg(static_cast<std::streamoff>(header_size_));
    // When somebody took the file away while training ran, nothing can be read and the header is all there is.
    uint64_t left = file_size_ - header_size_;
    std::vector<char> chunk(1 << 16);
    std::string widened;
    while (left > 0 && in.read(chunk.data(), static_cast<std::streamsize>(std::min<uint64_t>(left, chunk.size())))) {
      widened.clear();
      append_widened(widened, {chunk.data(), static_cast<size_t>(in.gcount())}, columns_.size() - file_columns_);
      out.append(widened);
      left -= static_cast<uint64_t>(in.gcount());
      new_size += widened.size();
    }
    if ((!in.is_open() || in.bad()) && FileSystem::current().exists(path_))
      throw Error("files", fmt::format("cannot read {}, whose rows belong before the new ones", path_));
  });
  header_size_ = new_header.size();
  file_size_ = new_size;
  file_columns_ = columns_.size();
  torn_ = false;
}

std::string CsvLogger::header() const {
  std::string text = fmt::format("{},{}", kEpochColumn, kStepColumn);
  for (const auto& name : columns_) {
    text += ',';
    append_name(text, name);
  }
  text += '\n';
  return text;
}

}  // namespace levin
