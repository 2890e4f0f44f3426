#include <levin/core/base/error_notes.h>

#include <gtest/gtest.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

namespace levin {
namespace {

TEST(ErrorNotes, TheInnermostPlaceCounts) {
  try {
    noting_errors(
        [] { noting_errors([] { throw std::runtime_error("x"); }, [](ErrorNotes& notes) { notes.place = "inner"; }); },
        [](ErrorNotes& notes) {
          if (notes.place.empty()) notes.place = "outer";
          notes.moment = "later";
        });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "x");
    const ErrorNotes notes = take_error_notes(std::current_exception());
    EXPECT_EQ(notes.place, "inner");
    EXPECT_EQ(notes.moment, "later");
    EXPECT_FALSE(notes.stack.empty());
    EXPECT_TRUE(take_error_notes(std::current_exception()).place.empty()) << "they are taken once";
  }
}

TEST(ErrorNotes, GoWithTheErrorToAnotherThread) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      noting_errors([] { throw std::logic_error("x"); }, [](ErrorNotes& notes) { notes.place = "there"; });
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  try {
    noting_errors([&] { std::rethrow_exception(error); }, [](ErrorNotes& notes) { notes.moment = "here"; });
  } catch (const std::logic_error&) {
    const ErrorNotes notes = take_error_notes(std::current_exception());
    EXPECT_EQ(notes.place, "there");
    EXPECT_EQ(notes.moment, "here");
  }
}

TEST(ErrorNotes, WhatIsThrownInsteadInheritsThem) {
  try {
    try {
      noting_errors([] { throw std::logic_error("x"); }, [](ErrorNotes& notes) { notes.place = "there"; });
    } catch (const std::logic_error&) {
      throw_instead(std::runtime_error("y"));
    }
  } catch (const std::runtime_error&) {
    EXPECT_EQ(take_error_notes(std::current_exception()).place, "there");
  }
}

TEST(ErrorNotes, NothingIsNotedAboutControlFlowOrWhatIsNoException) {
  struct Done : ControlFlow {};
  bool noted = false;
  const auto note = [&](ErrorNotes&) { noted = true; };
  EXPECT_THROW(noting_errors([] { throw Done(); }, note), Done);
  EXPECT_THROW(noting_errors([] { throw 3; }, note), int);
  EXPECT_FALSE(noted);
}

TEST(ErrorNotes, AFailingNoteHidesNothing) {
  EXPECT_THROW(noting_errors([] { throw std::logic_error("x"); }, [](ErrorNotes&) { throw std::runtime_error("y"); }),
               std::logic_error);
}

TEST(ErrorNotes, ResultsPassThrough) {
  int value = 3;
  int& same = noting_errors([&]() -> int& { return value; }, [](ErrorNotes&) {});
  EXPECT_EQ(&same, &value);
}

}  // namespace
}  // namespace levin
