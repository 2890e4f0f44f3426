#include <levin/core/base/utf8.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(PrintableText, EscapesWhatATerminalActsOn) {
  EXPECT_EQ(printable_text("plain, täglich\n\t│ 1"), "plain, täglich\n\t│ 1");
  EXPECT_EQ(printable_text("\x1b[31mred\x07\r"), "\\x1b[31mred\\x07\\x0d");
  EXPECT_EQ(printable_text(std::string("a\0b\x7f", 4)), "a\\x00b\\x7f");
  EXPECT_EQ(printable_text("\xc2\x9b"
                           "2J\xc2\xa9"),
            "\\x9b2J©");  // CSI in one character
  EXPECT_EQ(printable_text("\xc2"), "\xc2");
}

TEST(ErrorText, NoLineLooksLikeAMessageOfItsOwn) {
  EXPECT_EQ(error_text("[data] no 'a\nerror: all is well'"), "[data] no 'a\n    error: all is well'");
  EXPECT_EQ(error_text("no\n  in training_step of X\n  at x.cpp:3"), "no\n  in training_step of X\n  at x.cpp:3");
  EXPECT_EQ(error_text("no\n"), "no\n");
}

TEST(ErrorText, IsBoundedAndKeepsBothEnds) {
  const std::string text = error_text("[data] no '" + std::string(1000000, '\x01') + "'; hint: look");
  EXPECT_LT(text.size(), 8300u);
  EXPECT_TRUE(text.starts_with("[data] no '\\x01\\x01"));
  EXPECT_TRUE(text.ends_with("; hint: look"));
  std::string umlauts;
  for (int i = 0; i < 10000; ++i) umlauts += "ä";
  EXPECT_TRUE(is_utf8(error_text("x" + umlauts)));
  EXPECT_TRUE(is_utf8(error_text(umlauts)));
}

TEST(ShownNames, AreTheFirstOnes) {
  EXPECT_EQ(shown_names({}), "");
  const std::vector<std::string> names = {"a", "b\x1b", std::string(200, 'c')};
  EXPECT_EQ(shown_names(names), "a, b , " + std::string(100, 'c') + "...");
  EXPECT_EQ(shown_names(names, 1), "a and 2 more");
}

}  // namespace
}  // namespace levin
