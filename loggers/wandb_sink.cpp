#include <levin/loggers/wandb_sink.h>

#include <levin/core/base/file_system.h>

#include <fmt/format.h>
#include <protozero/pbf_writer.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

namespace levin {
namespace {

using Tag = protozero::pbf_tag_type;

// Field numbers of wandb/proto/wandb_internal.proto.
struct RecordField {
  static constexpr Tag kNumber = 1, kHistory = 2, kSummary = 3, kConfig = 5, kFiles = 6, kStats = 7, kArtifact = 8,
                       kMetric = 12, kRun = 17, kExit = 18, kHeader = 21, kInfo = 200;
};
struct RunField {
  static constexpr Tag kId = 1, kEntity = 2, kProject = 3, kGroup = 6, kName = 8, kNotes = 9, kTags = 10,
                       kStartTime = 17;
};
struct ItemField {  // of ConfigItem, HistoryItem, StatsItem and SummaryItem
  static constexpr Tag kKey = 1, kNestedKey = 2, kJson = 16;
};

// What a record is, in its first byte.
constexpr char kMessage = 'M', kHistory = 'H', kRunFile = 'F';

/// The version of W&B's client whose format this is, and the earliest that reads it.
constexpr const char* kProducer = "0.21.0";
constexpr const char* kEarliestReader = "0.40.0";

void add_items(std::string& data, Tag field, Tag name, std::span<const wandb::Item> items) {
  protozero::pbf_writer writer(data);
  for (const auto& item : items) {
    protozero::pbf_writer message(writer, field);
    message.add_string(name, item.key);
    message.add_string(ItemField::kJson, item.json);
  }
}

void add_timestamp(protozero::pbf_writer& writer, Tag field, double since_1970) {
  constexpr Tag kSeconds = 1, kNanoseconds = 2;
  protozero::pbf_writer timestamp(writer, field);
  const double seconds = std::floor(since_1970);
  timestamp.add_int64(kSeconds, static_cast<int64_t>(seconds));
  timestamp.add_int32(kNanoseconds, static_cast<int32_t>((since_1970 - seconds) * 1e9));
}

std::string message_with(Tag field, const std::string& content) {
  std::string data(1, kMessage);
  protozero::pbf_writer(data).add_message(field, content);
  return data;
}

std::string file_message(const std::string& path) {
  constexpr Tag kFiles = 1, kPath = 1, kPolicy = 2, kType = 3;
  constexpr int32_t kNow = 0, kWandb = 1, kMedia = 2;
  std::string files;
  {
    protozero::pbf_writer writer(files);
    protozero::pbf_writer file(writer, kFiles);
    file.add_string(kPath, path);
    file.add_enum(kPolicy, kNow);
    file.add_enum(kType, path.starts_with("media/") ? kMedia : kWandb);
  }
  return message_with(RecordField::kFiles, files).substr(1);
}

std::string header_message() {
  constexpr Tag kVersions = 1, kProducerField = 1, kReaderField = 2;
  std::string header;
  {
    protozero::pbf_writer writer(header);
    protozero::pbf_writer versions(writer, kVersions);
    versions.add_string(kProducerField, kProducer);
    versions.add_string(kReaderField, kEarliestReader);
  }
  return message_with(RecordField::kHeader, header).substr(1);
}

}  // namespace

// ---- Records.

std::string wandb::run_record(const Run& run) {
  std::string data;
  {
    protozero::pbf_writer writer(data);
    writer.add_string(RunField::kId, run.id);
    if (!run.entity.empty()) writer.add_string(RunField::kEntity, run.entity);
    writer.add_string(RunField::kProject, run.project);
    if (!run.group.empty()) writer.add_string(RunField::kGroup, run.group);
    if (!run.name.empty()) writer.add_string(RunField::kName, run.name);
    if (!run.notes.empty()) writer.add_string(RunField::kNotes, run.notes);
    for (const auto& tag : run.tags) writer.add_string(RunField::kTags, tag);
    add_timestamp(writer, RunField::kStartTime, run.start_seconds);
  }
  return message_with(RecordField::kRun, data);
}

std::string wandb::config_record(const std::vector<Item>& items) {
  constexpr Tag kUpdate = 1;
  std::string data;
  add_items(data, kUpdate, ItemField::kKey, items);
  return message_with(RecordField::kConfig, data);
}

std::string wandb::step_metric_record(const std::string& step_metric) {
  constexpr Tag kGlob = 2, kStepMetric = 4, kOptions = 6, kStepSync = 1, kDefined = 3;
  std::string data;
  {
    protozero::pbf_writer writer(data);
    writer.add_string(kGlob, "*");
    writer.add_string(kStepMetric, step_metric);
    protozero::pbf_writer options(writer, kOptions);
    options.add_bool(kStepSync, true);
    options.add_bool(kDefined, true);
  }
  return message_with(RecordField::kMetric, data);
}

std::string wandb::history_record(const std::vector<Item>& items) {
  constexpr Tag kItem = 1;
  std::string data(1, kHistory);
  add_items(data, kItem, ItemField::kNestedKey, items);
  return data;
}

std::string wandb::stats_record(const std::vector<Item>& items, double seconds) {
  constexpr Tag kType = 1, kTimestamp = 2, kItem = 3;
  constexpr int32_t kSystem = 0;
  std::string data;
  {
    protozero::pbf_writer writer(data);
    writer.add_enum(kType, kSystem);
    add_timestamp(writer, kTimestamp, seconds);
  }
  add_items(data, kItem, ItemField::kKey, items);
  return message_with(RecordField::kStats, data);
}

std::string wandb::summary_record(const std::vector<Item>& items) {
  constexpr Tag kUpdate = 1;
  std::string data;
  add_items(data, kUpdate, ItemField::kNestedKey, items);
  return message_with(RecordField::kSummary, data);
}

std::string wandb::artifact_record(const std::string& message) { return message_with(RecordField::kArtifact, message); }

std::string wandb::exit_record(int exit_code, int runtime_seconds) {
  constexpr Tag kCode = 1, kRuntime = 2;
  std::string data;
  protozero::pbf_writer writer(data);
  writer.add_int32(kCode, exit_code);
  writer.add_int32(kRuntime, runtime_seconds);
  return message_with(RecordField::kExit, data);
}

std::string wandb::file_record(const std::string& path, std::string_view content) {
  return fmt::format("{}{}\n{}", kRunFile, path, content);
}

// ---- The sink.

WandbSink::WandbSink(std::string folder, std::string run_id) : folder_(std::move(folder)), run_id_(std::move(run_id)) {}

size_t WandbSink::send(std::span<const std::string> records, const std::atomic<bool>&) {
  if (!file_) {
    file_.emplace(fmt::format("{}/run-{}.wandb", folder_, run_id_));
    rows_ = file_->rows_found();
  }
  std::vector<std::string> messages;
  if (file_->messages() == 0) messages.push_back(header_message());
  const int64_t rows = rows_;
  try {
    for (const auto& record : records) messages.push_back(message_of(record));
    int64_t number = file_->messages();
    for (auto& message : messages) {
      protozero::pbf_writer writer(message);
      writer.add_int64(RecordField::kNumber, ++number);
      constexpr Tag kStream = 1;
      protozero::pbf_writer info(writer, RecordField::kInfo);
      info.add_string(kStream, run_id_);
    }
    file_->append(messages);
  } catch (...) {
    rows_ = rows;
    throw;
  }
  return records.size();
}

/// The message that a record becomes.
std::string WandbSink::message_of(const std::string& record) {
  switch (record.front()) {
    case kHistory: {
      constexpr Tag kItem = 1, kStep = 2, kStepNumber = 1;
      std::string history = record.substr(1);
      const int64_t row = rows_++;
      const wandb::Item step{"_step", std::to_string(row)};
      add_items(history, kItem, ItemField::kNestedKey, {&step, 1});
      {
        protozero::pbf_writer writer(history);
        protozero::pbf_writer number(writer, kStep);
        number.add_int64(kStepNumber, row);
      }
      return message_with(RecordField::kHistory, history).substr(1);
    }
    case kRunFile: {
      const size_t end = record.find('\n');
      const std::string path = record.substr(1, end - 1);
      const std::string target = folder_ + "/files/" + path;
      auto& files = FileSystem::current();
      files.create_directories(std::filesystem::path(target).parent_path().string());
      files.replace_file(target, std::string_view(record).substr(end + 1));
      return file_message(path);
    }
    default:
      return record.substr(1);
  }
}

}  // namespace levin
