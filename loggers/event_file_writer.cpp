#include <levin/loggers/event_file_writer.h>

#include <levin/loggers/histogram.h>

#include <fmt/format.h>
#include <boost/crc.hpp>
#include <protozero/data_view.hpp>
#include <protozero/pbf_writer.hpp>

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <ctime>
#include <utility>

namespace levin {
namespace {

// Field numbers of the messages in tensorflow/core/util/event.proto and tensorflow/core/framework/{summary,tensor,
// tensor_shape,types,histogram}.proto.
struct EventField {
  static constexpr protozero::pbf_tag_type kWallTime = 1, kStep = 2, kFileVersion = 3, kGraph = 4, kSummary = 5,
                                           kSessionLog = 7;
};
struct SessionLogField {
  static constexpr protozero::pbf_tag_type kStatus = 1;
};
struct SummaryField {
  static constexpr protozero::pbf_tag_type kValue = 1;
};
struct ValueField {
  static constexpr protozero::pbf_tag_type kTag = 1, kSimpleValue = 2, kImage = 4, kHistogram = 5, kTensor = 8,
                                           kMetadata = 9;
};
struct ImageField {
  static constexpr protozero::pbf_tag_type kHeight = 1, kWidth = 2, kColorSpace = 3, kEncoded = 4;
};
struct HistogramField {
  static constexpr protozero::pbf_tag_type kMin = 1, kMax = 2, kCount = 3, kSum = 4, kSumOfSquares = 5, kLimits = 6,
                                           kCounts = 7;
};
struct MetadataField {
  static constexpr protozero::pbf_tag_type kPluginData = 1, kDataClass = 4;
};
struct PluginDataField {
  static constexpr protozero::pbf_tag_type kName = 1, kContent = 2;
};
struct TensorField {
  static constexpr protozero::pbf_tag_type kType = 1, kShape = 2, kStrings = 8;
};
struct ShapeField {
  static constexpr protozero::pbf_tag_type kDimension = 2, kDimensionSize = 1;
};
constexpr int32_t kSessionStart = 1;
constexpr int32_t kFloatType = 1;
constexpr int32_t kStringType = 7;
constexpr int32_t kTensorDataClass = 2;

static_assert(std::endian::native == std::endian::little,
              "records are little-endian and written as they lie in memory");

protozero::data_view view(std::string_view text) { return {text.data(), text.size()}; }

/// CRC-32C, rotated and offset as TFRecord wants it (tensorflow/core/lib/hash/crc32c.h).
uint32_t masked_crc(const void* data, size_t size) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data, size);
  return std::rotr(static_cast<uint32_t>(crc.checksum()), 15) + 0xa282ead8u;
}

template <class Integer>
void append_bytes(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_record(std::string& out, const std::string& data) {
  const uint64_t length = data.size();
  append_bytes(out, length);
  append_bytes(out, masked_crc(&length, sizeof length));
  out += data;
  append_bytes(out, masked_crc(data.data(), data.size()));
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// As a simple value, which every reader of event files takes for a scalar; it has the precision of a float.
void add_scalar(protozero::pbf_writer& summary, std::string_view name, double number) {
  protozero::pbf_writer value(summary, SummaryField::kValue);
  value.add_string(ValueField::kTag, view(name));
  value.add_float(ValueField::kSimpleValue, static_cast<float>(number));
}

void add_plugin(protozero::pbf_writer& value, std::string_view plugin, std::string_view content) {
  protozero::pbf_writer metadata(value, ValueField::kMetadata);
  {
    protozero::pbf_writer data(metadata, MetadataField::kPluginData);
    data.add_string(PluginDataField::kName, view(plugin));
    if (!content.empty()) data.add_bytes(PluginDataField::kContent, view(content));
  }
  metadata.add_enum(MetadataField::kDataClass, kTensorDataClass);
}

/// A vector of `size` elements. The elements themselves are up to the caller.
void begin_vector(protozero::pbf_writer& tensor, int32_t type, int64_t size) {
  tensor.add_enum(TensorField::kType, type);
  protozero::pbf_writer shape(tensor, TensorField::kShape);
  protozero::pbf_writer dimension(shape, ShapeField::kDimension);
  dimension.add_int64(ShapeField::kDimensionSize, size);
}

/// A name that sorts after those of earlier files, since TensorBoard reads a folder's files in the order of their
/// names.
std::string file_name() {
  static std::atomic<int> files_of_this_process = 0;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {'h', 'o', 's', 't'};
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", std::time(nullptr), host.data(), ::getpid(),
                     files_of_this_process++);
}

}  // namespace

EventFileWriter::EventFileWriter(std::string directory) : directory_(std::move(directory)) {}

void EventFileWriter::add_scalars(std::span<const MetricValue> values, int64_t epoch, int64_t step) {
  summary_.clear();
  protozero::pbf_writer summary(summary_);
  bool has_epoch = false;
  for (const auto& metric : values) {
    add_scalar(summary, metric.name, metric.value);
    has_epoch = has_epoch || metric.name == "epoch";
  }
  if (!has_epoch) add_scalar(summary, "epoch", static_cast<double>(epoch));
  append_event(step, summary_);
}

void EventFileWriter::add_text(std::string_view name, std::string_view text, int64_t step) {
  summary_.clear();
  protozero::pbf_writer summary(summary_);
  {
    protozero::pbf_writer value(summary, SummaryField::kValue);
    value.add_string(ValueField::kTag, view(name));
    {
      protozero::pbf_writer tensor(value, ValueField::kTensor);
      begin_vector(tensor, kStringType, 1);
      tensor.add_bytes(TensorField::kStrings, view(text));
    }
    add_plugin(value, "text", "");
  }
  append_event(step, summary_);
}

void EventFileWriter::add_histogram(std::string_view name, std::span<const double> values, int64_t step) {
  const Histogram histogram = Histogram::of(values);
  if (histogram.count == 0) return;
  summary_.clear();
  protozero::pbf_writer summary(summary_);
  {
    protozero::pbf_writer value(summary, SummaryField::kValue);
    value.add_string(ValueField::kTag, view(name));
    protozero::pbf_writer message(value, ValueField::kHistogram);
    message.add_double(HistogramField::kMin, histogram.min);
    message.add_double(HistogramField::kMax, histogram.max);
    message.add_double(HistogramField::kCount, histogram.count);
    message.add_double(HistogramField::kSum, histogram.sum);
    message.add_double(HistogramField::kSumOfSquares, histogram.sum_of_squares);
    message.add_packed_double(HistogramField::kLimits, histogram.limits.begin(), histogram.limits.end());
    message.add_packed_double(HistogramField::kCounts, histogram.counts.begin(), histogram.counts.end());
  }
  append_event(step, summary_);
}

void EventFileWriter::add_image(std::string_view name, const EncodedImage& image, int64_t step) {
  summary_.clear();
  protozero::pbf_writer summary(summary_);
  {
    protozero::pbf_writer value(summary, SummaryField::kValue);
    value.add_string(ValueField::kTag, view(name));
    protozero::pbf_writer message(value, ValueField::kImage);
    message.add_int32(ImageField::kHeight, static_cast<int32_t>(image.height));
    message.add_int32(ImageField::kWidth, static_cast<int32_t>(image.width));
    message.add_int32(ImageField::kColorSpace, static_cast<int32_t>(image.channels));  // the values are the counts
    message.add_bytes(ImageField::kEncoded, view(image.png));
  }
  append_event(step, summary_);
}

void EventFileWriter::add_hyperparameters(std::string_view tag, std::string_view content) {
  summary_.clear();
  protozero::pbf_writer summary(summary_);
  {
    protozero::pbf_writer value(summary, SummaryField::kValue);
    value.add_string(ValueField::kTag, view(tag));
    {
      // The plug-in's data is in the metadata; readers still want a tensor to hang it on.
      protozero::pbf_writer tensor(value, ValueField::kTensor);
      begin_vector(tensor, kFloatType, 0);
    }
    add_plugin(value, "hparams", content);
  }
  append_event(0, summary_);
}

void EventFileWriter::add_restart(int64_t step) {
  event_.clear();
  protozero::pbf_writer event(event_);
  event.add_double(EventField::kWallTime, wall_time());
  event.add_int64(EventField::kStep, step);
  {
    protozero::pbf_writer session(event, EventField::kSessionLog);
    session.add_enum(SessionLogField::kStatus, kSessionStart);
  }
  append_record(pending_, event_);
  ++pending_events_;
}

void EventFileWriter::add_graph(std::string_view graph_def) {
  event_.clear();
  protozero::pbf_writer event(event_);
  event.add_double(EventField::kWallTime, wall_time());
  event.add_bytes(EventField::kGraph, view(graph_def));
  append_record(pending_, event_);
  ++pending_events_;
}

void EventFileWriter::append_event(int64_t step, const std::string& summary) {
  event_.clear();
  protozero::pbf_writer event(event_);
  event.add_double(EventField::kWallTime, wall_time());
  event.add_int64(EventField::kStep, step);
  event.add_message(EventField::kSummary, summary);
  append_record(pending_, event_);
  ++pending_events_;
}

void EventFileWriter::open() {
  auto& files = FileSystem::current();
  path_ = directory_ + "/" + file_name();
  files.create_directories(directory_);
  file_ = files.create(path_);

  std::string data;
  protozero::pbf_writer event(data);
  event.add_double(EventField::kWallTime, wall_time());
  event.add_string(EventField::kFileVersion, "brain.Event:2");
  std::string record;
  append_record(record, data);
  file_->append(record);
}

void EventFileWriter::flush() {
  if (pending_.empty()) return;
  const bool is_new = file_ == nullptr;
  try {
    if (is_new) open();
    file_->append(pending_);
    file_->flush();
  } catch (...) {
    file_.reset();
    // All that it has is still to be written.
    if (is_new) ::unlink(path_.c_str());
    throw;
  }
  pending_.clear();
  pending_events_ = 0;
}

void EventFileWriter::close() {
  flush();
  if (const auto file = std::move(file_)) file->close();
}

}  // namespace levin
