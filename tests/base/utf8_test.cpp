#include <levin/core/base/utf8.h>

#include <gtest/gtest.h>

#include <string>

namespace levin {
namespace {

TEST(ShownText, IsOneLineAndCutBetweenCharacters) {
  EXPECT_EQ(shown_text("", 3), "");
  EXPECT_EQ(shown_text("abc", 3), "abc");
  EXPECT_EQ(shown_text("abcd", 3), "abc...");
  EXPECT_EQ(shown_text("a\r\n\x1b\x7f"
                       "b",
                       10),
            "a    b");
  EXPECT_EQ(shown_text("äöü", 6), "äöü");
  EXPECT_EQ(shown_text("äöü", 5), "äö...");
  EXPECT_EQ(shown_text("äöü", 1), "...");
  // What is no UTF-8 is not waited for.
  EXPECT_EQ(shown_text(std::string(8, '\x80'), 4), "...");
}

}  // namespace
}  // namespace levin
