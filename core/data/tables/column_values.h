#pragma once

#include <levin/core/data/tables/table.h>

#include <bitset>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin::data {

/// Returns the finite number that a text is, the nearest double; nothing for any other text.
std::optional<double> parse_number(std::string_view text);

/// The words for values that are missing. Few fields begin as one of them does, so that most are told by a byte.
class MissingWords {
 public:
  /// `words` must outlive this object.
  explicit MissingWords(const std::vector<std::string>& words);
  bool contains(std::string_view text) const;

 private:
  const std::vector<std::string>& words_;
  std::bitset<256> first_bytes_;
  bool has_empty_ = false;
};

/// The values of one column as they come, by a reader of tables.
struct ColumnValues {
  std::string name = {};
  bool is_ignored = false;
  std::optional<ColumnType> type = {};  ///< unknown until the reader knows it
  std::vector<std::string> sample = {};
  std::vector<double> numbers = {};
  std::vector<int64_t> codes = {};  ///< in the order in which categories were first seen, -1 where missing

  /// Adds a value of a column whose type is known. `path` and `line` lead the levin::Error for what is no number.
  void add(std::string_view text, const MissingWords& missing, const std::string& path, int64_t line);
  void add_missing();
  /// Returns the code of a category, a new one where it is seen for the first time.
  int64_t code_of(std::string_view text);
  /// Makes room for so many values of a column whose type is known.
  void reserve(size_t rows);
  /// Hands over the column, its categories in order.
  TableColumn finish();

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>> categories_ = {};
};

/// Makes a file's columns as the options say it. Throws levin::Error, led by `place`, where two have one name, and led
/// by `path` where the options name a column that is not there.
std::vector<ColumnValues> make_columns(const std::vector<std::string>& names, const TableOptions& options,
                                       const std::string& path, const std::string& place);

/// Throws the levin::Error for a value of a column of numbers that is none.
[[noreturn]] void fail_number(const std::string& path, int64_t line, const std::string& column, std::string_view text);

}  // namespace levin::data
