#include <levin/core/data/joined_predictions.h>

#include <levin/core/base/csv.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <set>

namespace levin {
namespace {

/// What the batches have under one name.
struct PredictedField {
  std::string name;
  std::vector<at::Tensor> of_batch;  ///< undefined where a batch has none; a number is one row
};

std::vector<PredictedField> fields_of(const std::vector<Batch>& batches) {
  std::vector<PredictedField> fields;
  for (size_t i = 0; i < batches.size(); ++i) {
    for (const auto& [name, tensor] : batches[i].items()) {
      if (!tensor.defined()) continue;
      auto field = std::find_if(fields.begin(), fields.end(),
                                [&name = name](const PredictedField& other) { return other.name == name; });
      if (field == fields.end())
        field = fields.insert(field, {.name = name, .of_batch = std::vector<at::Tensor>(batches.size())});
      field->of_batch[i] = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
    }
  }
  return fields;
}

/// `name`, longer where a field has it.
std::string free_name(std::string name, const std::vector<PredictedField>& fields) {
  while (std::any_of(fields.begin(), fields.end(), [&](const PredictedField& field) { return field.name == name; }))
    name += "_";
  return name;
}

/// The type that holds the values of both exactly; nothing where there is none.
std::optional<at::ScalarType> common_type(at::ScalarType a, at::ScalarType b) {
  if (a == b) return a;
  if (at::isIntegralType(a, /*includeBool=*/true) != at::isIntegralType(b, /*includeBool=*/true)) return std::nullopt;
  try {
    return c10::promoteTypes(a, b);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

/// The tensors of a field that go into one, with those left out that have no rows: their other sizes mean nothing.
class FieldJoin {
 public:
  explicit FieldJoin(const PredictedField& field) {
    for (size_t i = 0; i < field.of_batch.size(); ++i)
      if (field.of_batch[i].defined() && field.of_batch[i].size(0) > 0) add(i, field.of_batch[i]);
    if (!pieces_.empty()) return;
    const auto any = std::find_if(field.of_batch.begin(), field.of_batch.end(),
                                  [](const at::Tensor& tensor) { return tensor.defined(); });
    add(static_cast<size_t>(any - field.of_batch.begin()), *any);
  }

  /// Why there is no such tensor; empty where there is one.
  const std::string& obstacle() const { return obstacle_; }

  at::Tensor joined() const {
    if (!is_ragged()) {
      std::vector<at::Tensor> same_type;
      for (const at::Tensor& piece : pieces_) same_type.push_back(piece.to(type_));
      return at::cat(same_type);
    }
    std::vector<int64_t> sizes = largest_;
    sizes[0] = rows_;
    at::Tensor padded = at::zeros(sizes, type_);
    int64_t row = 0;
    for (const at::Tensor& piece : pieces_) {
      at::Tensor place = padded.narrow(0, row, piece.size(0));
      for (int64_t d = 1; d < piece.dim(); ++d) place = place.narrow(d, 0, piece.size(d));
      place.copy_(piece);
      row += piece.size(0);
    }
    return padded;
  }

  bool is_ragged() const { return !ragged_.empty(); }

  /// Of each row: the size before it was padded, along the one dimension that differs or, where several do, along each.
  at::Tensor lengths() const {
    std::vector<int64_t> dimensions(ragged_.begin(), ragged_.end());
    if (dimensions.size() > 1) {
      dimensions.clear();
      for (int64_t d = 1; d < pieces_.front().dim(); ++d) dimensions.push_back(d);
    }
    std::vector<at::Tensor> of_pieces;
    for (const at::Tensor& piece : pieces_) {
      std::vector<int64_t> sizes;
      sizes.reserve(dimensions.size());
      for (const int64_t d : dimensions) sizes.push_back(piece.size(d));
      of_pieces.push_back(at::tensor(sizes, at::kLong).expand({piece.size(0), -1}));
    }
    const at::Tensor all = at::cat(of_pieces);
    return dimensions.size() == 1 ? all.squeeze(1) : all;
  }

 private:
  void add(size_t batch, const at::Tensor& piece) {
    if (!obstacle_.empty()) return;
    if (pieces_.empty()) {
      first_batch_ = batch;
      type_ = piece.scalar_type();
      largest_ = piece.sizes().vec();
    }
    const auto type = common_type(type_, piece.scalar_type());
    if (!type || std::ssize(largest_) != piece.dim()) {
      const auto described = [](const at::Tensor& tensor) {
        return c10::str(tensor.sizes(), " ", tensor.scalar_type());
      };
      obstacle_ = fmt::format("got {} in batch {} and {} in batch {}", described(pieces_.front()), first_batch_,
                              described(piece), batch);
      return;
    }
    type_ = *type;
    rows_ += piece.size(0);
    for (int64_t d = 1; d < piece.dim(); ++d) {
      int64_t& largest = largest_[static_cast<size_t>(d)];
      if (largest != piece.size(d)) ragged_.insert(d);
      largest = std::max(largest, piece.size(d));
    }
    pieces_.push_back(piece);
  }

  std::vector<at::Tensor> pieces_;
  size_t first_batch_ = 0;
  at::ScalarType type_ = at::kFloat;
  int64_t rows_ = 0;
  std::vector<int64_t> largest_;
  std::set<int64_t> ragged_;  ///< dimensions after the first that differ
  std::string obstacle_;
};

/// How many rows each batch gave.
std::vector<int64_t> rows_of(const PredictedField& field) {
  std::vector<int64_t> rows;
  for (const at::Tensor& tensor : field.of_batch) rows.push_back(tensor.defined() ? tensor.size(0) : 0);
  return rows;
}

/// Whether one can tell from their sum: all are equal but for the last, which may be smaller.
bool are_regular(const std::vector<int64_t>& rows) {
  return std::all_of(rows.begin(), rows.end() - 1, [&](int64_t count) { return count == rows.front(); }) &&
         rows.back() <= rows.front() && rows.back() > 0;
}

/// The tensors that a field becomes.
std::vector<Batch::Item> joined_field(const PredictedField& field, const FieldJoin& join,
                                      const std::vector<PredictedField>& fields) {
  std::vector<Batch::Item> tensors{{field.name, join.joined()}};
  if (join.is_ragged()) tensors.emplace_back(free_name(field.name + ".lengths", fields), join.lengths());
  if (const auto rows = rows_of(field); !are_regular(rows))
    tensors.emplace_back(free_name(field.name + ".rows", fields), at::tensor(rows, at::kLong));
  return tensors;
}

/// The batches' texts below each other, by name in the order in which they came.
std::vector<Batch::TextItem> joined_texts(const std::vector<Batch>& batches) {
  std::vector<Batch::TextItem> joined;
  size_t rows = 0;
  for (const Batch& batch : batches) {
    size_t own_rows = batch.text_items().empty() ? static_cast<size_t>(batch.size()) : 0;
    for (const auto& [name, texts] : batch.text_items()) {
      own_rows = std::max(own_rows, texts.size());
      auto place = std::find_if(joined.begin(), joined.end(),
                                [&name = name](const Batch::TextItem& other) { return other.first == name; });
      if (place == joined.end()) place = joined.insert(place, {name, {}});
      place->second.resize(rows);
      place->second.insert(place->second.end(), texts.begin(), texts.end());
    }
    rows += own_rows;
  }
  for (auto& [name, texts] : joined) texts.resize(rows);
  return joined;
}

}  // namespace

JoinedPredictions join_predictions(const std::vector<Batch>& batches) {
  const std::vector<PredictedField> fields = fields_of(batches);
  JoinedPredictions result;
  for (const PredictedField& field : fields) {
    const FieldJoin join(field);
    std::string obstacle = join.obstacle();
    if (obstacle.empty()) {
      try {
        for (auto& item : joined_field(field, join, fields)) result.tensors.push_back(std::move(item));
        continue;
      } catch (const c10::Error& error) {
        obstacle = error.what_without_backtrace();
      } catch (const std::exception& error) {
        obstacle = error.what();
      }
    }
    result.notes.push_back(
        fmt::format("'{}' does not fit into one tensor and is saved batch by batch, as '{}' and so "
                    "on: {}",
                    field.name, free_name(field.name + ".batch_0", fields), obstacle));
    for (size_t i = 0; i < field.of_batch.size(); ++i)
      if (field.of_batch[i].defined())
        result.tensors.emplace_back(free_name(fmt::format("{}.batch_{}", field.name, i), fields), field.of_batch[i]);
  }
  result.texts = joined_texts(batches);
  return result;
}

std::string csv_of_texts(const std::vector<Batch::TextItem>& texts) {
  CsvRow header;
  size_t rows = 0;
  for (const auto& [name, of_rows] : texts) {
    header.push_back(name);
    rows = std::max(rows, of_rows.size());
  }
  std::string table = csv_line(header);
  for (size_t row = 0; row < rows; ++row) {
    CsvRow cells;
    for (const auto& [name, of_rows] : texts) cells.push_back(row < of_rows.size() ? of_rows[row] : "");
    table += csv_line(cells);
  }
  return table;
}

namespace {

bool have_same_texts(const Batch& a, const Batch& b) {
  return a.text_items().size() == b.text_items().size() &&
         std::all_of(a.text_items().begin(), a.text_items().end(),
                     [&b](const Batch::TextItem& item) { return b.find_texts(item.first) != nullptr; });
}

}  // namespace

bool are_slices_of_one_batch(const std::vector<Batch>& parts) {
  const auto& first = parts.front().items();
  return std::all_of(parts.begin(), parts.end(), [&](const Batch& part) {
    return part.items().size() == first.size() && have_same_texts(part, parts.front()) &&
           std::all_of(first.begin(), first.end(), [&](const Batch::Item& item) {
             const at::Tensor* tensor = part.find(item.first);
             return tensor != nullptr && tensor->defined() && item.second.defined() && tensor->dim() > 0 &&
                    tensor->dim() == item.second.dim() && tensor->scalar_type() == item.second.scalar_type() &&
                    tensor->sizes().slice(1) == item.second.sizes().slice(1);
           });
  });
}

}  // namespace levin
