#pragma once

#include <c10/util/FunctionRef.h>

#include <memory>
#include <string>
#include <string_view>

namespace levin::data {

/// A regular expression of Unicode, or a text that is looked for as it is. Thread-safe.
class WordSplitter {
 public:
  enum class Pattern { kExpression, kText };

  /// Throws levin::Error, led by `name`, when the expression is none.
  WordSplitter(const std::string& expression, const std::string& name, Pattern pattern = Pattern::kExpression);
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

  /// Gives the matches of a text and what lies between them in order; together they are the text. Matches may be empty.
  /// Requires: the text is UTF-8.
  void split(std::string_view text, c10::function_ref<void(std::string_view part, bool is_match)> give) const;

 private:
  struct Expression;
  std::unique_ptr<const Expression> expression_;
};

}  // namespace levin::data
