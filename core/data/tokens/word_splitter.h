#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace levin::data {

/// Splits texts by a regular expression of Unicode: each match is a word, and so is what lies between two.
class WordSplitter {
 public:
  /// Throws levin::Error, led by `name`, when the expression is none.
  WordSplitter(const std::string& expression, const std::string& name);
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

  /// Gives the words of a text in order; together they are the text. Throws levin::Error when it is not UTF-8.
  /// Thread-safe.
  void split(std::string_view text, const std::function<void(std::string_view word)>& give) const;

 private:
  struct Expression;
  std::unique_ptr<const Expression> expression_;
};

}  // namespace levin::data
