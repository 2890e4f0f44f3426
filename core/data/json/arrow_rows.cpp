// Rows of Arrow IPC files, by Arrow's library where Levin is built with it.

#include <levin/core/data/json/arrow_rows.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#ifdef LEVIN_HAS_PARQUET

#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/utf8.h>
#include <levin/core/data/mapped_file.h>

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/message.h>
#include <arrow/ipc/options.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <c10/util/Half.h>

#include <list>
#include <utility>
#include <vector>

#endif

namespace levin::data {
namespace {

/// Of a stream: what stands in front of each of its messages.
constexpr std::string_view kContinuation = "\xff\xff\xff\xff";
constexpr std::string_view kFileMagic = "ARROW1";

}  // namespace

bool is_arrow_file(const std::string& path) {
  const Descriptor file = open_regular_file(path, "data");
  std::array<char, 8> begin{};
  const ssize_t count = ::pread(file.number(), begin.data(), begin.size(), 0);
  const std::string_view text(begin.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return text.starts_with(kContinuation) || text.starts_with(kFileMagic);
}

#ifdef LEVIN_HAS_PARQUET

namespace {

using MessageReader = arrow::ipc::MessageReader;
using MessagePtr = std::unique_ptr<arrow::ipc::Message>;

constexpr int64_t kFileHeader = 8;     ///< bytes before the messages of the form of a file
constexpr size_t kDecodedBatches = 4;  ///< that are kept

/// Bytes that Arrow may allocate for one file at a time: packed buffers say how long they are, and may say anything.
int64_t allocation_limit(int64_t file_bytes) { return (int64_t{512} << 20) + 4 * file_bytes; }

/// Where the messages of a file are.
struct ArrowMessages {
  int64_t schema = 0;
  std::vector<int64_t> dictionaries = {};
  struct Batch {
    int64_t end = 0;           ///< rows up to its end
    int64_t offset = 0;        ///< of its message
    int64_t dictionaries = 0;  ///< that stand before it
  };
  std::vector<Batch> batches = {};
};

/// Reads messages one after the other and notes where they are.
class NotingReader final : public MessageReader {
 public:
  NotingReader(std::shared_ptr<arrow::Buffer> bytes, int64_t begin, ArrowMessages& messages, bool& has_end)
      : stream_(std::move(bytes)), offset_(begin), messages_(messages), has_end_(has_end) {}

  arrow::Result<MessagePtr> ReadNextMessage() override {
    ARROW_RETURN_NOT_OK(stream_.Seek(offset_));
    ARROW_ASSIGN_OR_RAISE(MessagePtr message, arrow::ipc::ReadMessage(&stream_));
    const int64_t begin = std::exchange(offset_, stream_.Tell().ValueOr(0));
    if (message == nullptr) {
      has_end_ = offset_ > begin;  // a mark, and not the end of the bytes alone
    } else if (message->type() == arrow::ipc::MessageType::SCHEMA) {
      messages_.schema = begin;
    } else if (message->type() == arrow::ipc::MessageType::DICTIONARY_BATCH) {
      messages_.dictionaries.push_back(begin);
    } else {
      messages_.batches.push_back(
          {.offset = begin, .dictionaries = static_cast<int64_t>(messages_.dictionaries.size())});
    }
    return message;
  }

 private:
  arrow::io::BufferReader stream_;
  int64_t offset_;
  ArrowMessages& messages_;
  bool& has_end_;
};

/// Reads the messages at some places.
class PlacedReader final : public MessageReader {
 public:
  PlacedReader(std::shared_ptr<arrow::Buffer> bytes, std::vector<int64_t> offsets)
      : stream_(std::move(bytes)), offsets_(std::move(offsets)) {}

  arrow::Result<MessagePtr> ReadNextMessage() override {
    if (next_ == offsets_.size()) return MessagePtr();
    ARROW_RETURN_NOT_OK(stream_.Seek(offsets_[next_++]));
    return arrow::ipc::ReadMessage(&stream_);
  }

 private:
  arrow::io::BufferReader stream_;
  std::vector<int64_t> offsets_;
  size_t next_ = 0;
};

enum class JsonForm { kValue, kText, kList, kFixedList, kObject, kDictionary, kNone };

/// How values of a type become JSON.
JsonForm form_of(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::NA:
    case arrow::Type::BOOL:
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
      return JsonForm::kValue;
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
      return JsonForm::kList;
    case arrow::Type::FIXED_SIZE_LIST:
      return JsonForm::kFixedList;
    case arrow::Type::STRUCT:
      return JsonForm::kObject;
    case arrow::Type::DICTIONARY:
      return JsonForm::kDictionary;
    default:
      if (arrow::is_numeric(type.id())) return JsonForm::kValue;
      return arrow::is_temporal(type.id()) || arrow::is_decimal(type.id()) ? JsonForm::kText : JsonForm::kNone;
  }
}

/// Adds the paths of what is left out of rows, with types.
void find_left_out(const std::string& path, const arrow::DataType& type, std::vector<std::string>& found) {
  switch (form_of(type)) {
    case JsonForm::kNone:
      found.push_back(fmt::format("{} ({})", path, type.ToString()));
      break;
    case JsonForm::kList:
    case JsonForm::kFixedList:
      find_left_out(path + "[]", *type.field(0)->type(), found);
      break;
    case JsonForm::kObject:
      for (const auto& field : type.fields()) find_left_out(path + "." + field->name(), *field->type(), found);
      break;
    case JsonForm::kDictionary:
      find_left_out(path, *static_cast<const arrow::DictionaryType&>(type).value_type(), found);
      break;
    case JsonForm::kValue:
    case JsonForm::kText:
      break;
  }
}

/// Makes values JSON. Arrow has compared the sizes of buffers with the lengths of arrays, and places in them here and
/// there alone: they are compared here. Throws levin::Error without the place.
nlohmann::json json_of(const arrow::Array& array, int64_t index);

template <class Array>
nlohmann::json json_number(const arrow::Array& array, int64_t index) {
  return static_cast<const Array&>(array).Value(index);
}

void check_range(int64_t begin, int64_t end, int64_t size) {
  if (begin < 0 || end < begin || end > size)
    throw Error("data", fmt::format("the row is damaged; got places {} to {} of {}", begin, end, size));
}

template <class Array>
nlohmann::json json_text(const arrow::Array& array, int64_t index) {
  const auto& texts = static_cast<const Array&>(array);
  const int64_t begin = texts.value_offset(index);
  const int64_t end = texts.value_offset(index + 1);
  const auto& bytes = texts.value_data();
  check_range(begin, end, bytes != nullptr ? bytes->size() : 0);
  std::string text = begin == end ? "" : std::string(texts.GetView(index));
  if (!is_utf8(text)) throw Error("data", fmt::format("a text is not UTF-8; got '{}'", shown_text(text, 60)));
  return text;
}

nlohmann::json json_items(const arrow::Array& items, int64_t begin, int64_t end) {
  check_range(begin, end, items.length());
  nlohmann::json list = nlohmann::json::array();
  for (int64_t item = begin; item < end; ++item) list.push_back(json_of(items, item));
  return list;
}

template <class Array>
nlohmann::json json_list(const arrow::Array& array, int64_t index) {
  const auto& lists = static_cast<const Array&>(array);
  return json_items(*lists.values(), lists.value_offset(index), lists.value_offset(index + 1));
}

nlohmann::json json_value(const arrow::Array& array, int64_t index) {
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(index);
    case arrow::Type::INT8:
      return json_number<arrow::Int8Array>(array, index);
    case arrow::Type::INT16:
      return json_number<arrow::Int16Array>(array, index);
    case arrow::Type::INT32:
      return json_number<arrow::Int32Array>(array, index);
    case arrow::Type::INT64:
      return json_number<arrow::Int64Array>(array, index);
    case arrow::Type::UINT8:
      return json_number<arrow::UInt8Array>(array, index);
    case arrow::Type::UINT16:
      return json_number<arrow::UInt16Array>(array, index);
    case arrow::Type::UINT32:
      return json_number<arrow::UInt32Array>(array, index);
    case arrow::Type::UINT64:
      return json_number<arrow::UInt64Array>(array, index);
    case arrow::Type::HALF_FLOAT:
      return static_cast<double>(
          c10::Half(static_cast<const arrow::HalfFloatArray&>(array).raw_values()[index], c10::Half::from_bits()));
    case arrow::Type::FLOAT:
      return static_cast<double>(static_cast<const arrow::FloatArray&>(array).Value(index));
    case arrow::Type::DOUBLE:
      return json_number<arrow::DoubleArray>(array, index);
    case arrow::Type::STRING:
      return json_text<arrow::StringArray>(array, index);
    case arrow::Type::LARGE_STRING:
      return json_text<arrow::LargeStringArray>(array, index);
    default:
      return nullptr;
  }
}

nlohmann::json json_object(const arrow::StructArray& array, int64_t index) {
  nlohmann::json object = nlohmann::json::object();
  for (int i = 0; i < array.num_fields(); ++i) {
    nlohmann::json value = json_of(*array.field(i), index);
    if (!value.is_null()) object[array.struct_type()->field(i)->name()] = std::move(value);
  }
  return object;
}

nlohmann::json json_of(const arrow::Array& array, int64_t index) {
  if (array.IsNull(index)) return nullptr;
  switch (form_of(*array.type())) {
    case JsonForm::kValue:
      return json_value(array, index);
    case JsonForm::kText: {
      const auto scalar = array.GetScalar(index);
      if (!scalar.ok()) throw Error("data", scalar.status().message());
      return (*scalar)->ToString();
    }
    case JsonForm::kList:
      return array.type_id() == arrow::Type::LIST ? json_list<arrow::ListArray>(array, index)
                                                  : json_list<arrow::LargeListArray>(array, index);
    case JsonForm::kFixedList: {
      const auto& lists = static_cast<const arrow::FixedSizeListArray&>(array);
      return json_items(*lists.values(), lists.value_offset(index), lists.value_offset(index + 1));
    }
    case JsonForm::kObject:
      return json_object(static_cast<const arrow::StructArray&>(array), index);
    case JsonForm::kDictionary: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      const int64_t place = coded.GetValueIndex(index);
      check_range(place, place + 1, coded.dictionary()->length());
      return json_of(*coded.dictionary(), place);
    }
    case JsonForm::kNone:
      break;
  }
  return nullptr;
}

}  // namespace

class ArrowRows::File {
 public:
  explicit File(const std::string& path)
      : path_(path),
        mapped_(path),
        bytes_(std::make_shared<arrow::Buffer>(reinterpret_cast<const uint8_t*>(mapped_.text().data()),
                                               static_cast<int64_t>(mapped_.text().size()))),
        pool_(&own_pool_, allocation_limit(bytes_->size())) {
    bool has_end = false;
    const int64_t begin = mapped_.text().starts_with(kFileMagic) ? kFileHeader : 0;
    const auto reader = open(std::make_unique<NotingReader>(bytes_, begin, messages_, has_end), /*first_column=*/true);
    while (const auto batch = checked(reader->Next())) messages_.batches.back().end = rows_ += batch->num_rows();
    if (!has_end || (begin > 0 && !mapped_.text().ends_with(kFileMagic)))
      throw Error("data", fmt::format("{} is cut short; got no mark at its end, as a whole Arrow file has", path));
    const auto whole =
        open(std::make_unique<PlacedReader>(bytes_, std::vector<int64_t>{messages_.schema}), /*first_column=*/false);
    std::vector<std::string> left_out;
    for (const auto& field : whole->schema()->fields()) find_left_out(field->name(), *field->type(), left_out);
    if (!left_out.empty())
      log::rank_zero_info_once(
          fmt::format("{}: rows are read without what JSON does not have: {}", path, shown_names(left_out)));
  }

  int64_t size() const { return rows_; }

  nlohmann::json row(int64_t row) const {
    const auto found = std::upper_bound(messages_.batches.begin(), messages_.batches.end(), row,
                                        [](int64_t wanted, const auto& batch) { return wanted < batch.end; });
    const auto place = static_cast<size_t>(found - messages_.batches.begin());
    const int64_t first = place == 0 ? 0 : messages_.batches[place - 1].end;
    const auto batch = decoded(place);
    nlohmann::json object = nlohmann::json::object();
    for (int column = 0; column < batch->num_columns(); ++column) {
      try {
        nlohmann::json value = json_of(*batch->column(column), row - first);
        if (!value.is_null()) object[batch->column_name(column)] = std::move(value);
      } catch (const Error& error) {
        std::string_view message = error.what();
        constexpr std::string_view kComponent = "[data] ";
        if (message.starts_with(kComponent)) message.remove_prefix(kComponent.size());
        throw Error("data", fmt::format("{}:{}: column '{}': {}", path_, row + 1, batch->column_name(column), message));
      }
    }
    return object;
  }

 private:
  using Batch = std::shared_ptr<arrow::RecordBatch>;

  void check(const arrow::Status& status) const {
    if (!status.ok())
      throw Error("data", fmt::format("cannot read {}, which is damaged or cut short: {}", path_, status.message()));
  }
  template <class T>
  T checked(arrow::Result<T> result) const {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }

  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> open(std::unique_ptr<MessageReader> messages,
                                                            bool first_column) const {
    arrow::ipc::IpcReadOptions options;
    options.memory_pool = &pool_;
    options.use_threads = false;
    options.ensure_alignment = arrow::ipc::Alignment::kDataTypeSpecificAlignment;
    if (first_column) options.included_fields = {0};
    return checked(arrow::ipc::RecordBatchStreamReader::Open(std::move(messages), options));
  }

  Batch decoded(size_t place) const {
    {
      const MutexLock lock(mutex_);
      const auto kept =
          std::find_if(decoded_.begin(), decoded_.end(), [place](const auto& one) { return one.first == place; });
      if (kept != decoded_.end()) {
        decoded_.splice(decoded_.begin(), decoded_, kept);
        return decoded_.front().second;
      }
    }
    const ArrowMessages::Batch& at = messages_.batches[place];
    std::vector<int64_t> offsets{messages_.schema};
    offsets.insert(offsets.end(), messages_.dictionaries.begin(), messages_.dictionaries.begin() + at.dictionaries);
    offsets.push_back(at.offset);
    const auto reader = open(std::make_unique<PlacedReader>(bytes_, std::move(offsets)), /*first_column=*/false);
    Batch batch = checked(reader->Next());
    if (batch == nullptr) check(arrow::Status::Invalid("a record batch is missing"));
    check(batch->Validate());
    const MutexLock lock(mutex_);
    decoded_.emplace_front(place, batch);
    if (decoded_.size() > kDecodedBatches) decoded_.pop_back();
    return batch;
  }

  const std::string path_;
  const MappedFile mapped_;
  const std::shared_ptr<arrow::Buffer> bytes_;
  mutable arrow::ProxyMemoryPool own_pool_{arrow::system_memory_pool()};  ///< counts what this file takes
  mutable arrow::CappedMemoryPool pool_;
  ArrowMessages messages_;
  int64_t rows_ = 0;
  mutable Mutex mutex_;
  /// Those used last, by their places, the newest first.
  mutable std::list<std::pair<size_t, Batch>> decoded_ LEVIN_GUARDED_BY(mutex_);
};

#else

class ArrowRows::File {
 public:
  explicit File(const std::string& path) {
    throw Error("data", fmt::format("cannot read {}: this Levin was built without Arrow, which reads Arrow IPC files; "
                                    "hint: `pip install pyarrow`, build with -DLEVIN_PARQUET=ON -DLEVIN_ARROW=DIR (the "
                                    "folder pyarrow); or write it as JSON lines: dataset.to_json(\"rows.jsonl\")",
                                    path));
  }
  int64_t size() const { return 0; }
  nlohmann::json row(int64_t /*row*/) const { return {}; }
};

#endif

ArrowRows::ArrowRows(const std::string& path) : file_(std::make_unique<const File>(path)) {}
ArrowRows::~ArrowRows() = default;
int64_t ArrowRows::size() const { return file_->size(); }
nlohmann::json ArrowRows::row(int64_t row) const { return file_->row(row); }

}  // namespace levin::data
