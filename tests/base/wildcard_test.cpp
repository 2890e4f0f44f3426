#include <levin/core/base/wildcard.h>

#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(Wildcard, StarsStandForAnyCharacters) {
  EXPECT_TRUE(matches_wildcard("blocks.*", "blocks.0.linear"));
  EXPECT_TRUE(matches_wildcard("*.bias", "blocks.0.bias"));
  EXPECT_TRUE(matches_wildcard("a*b*c", "a-b-b-c"));
  EXPECT_TRUE(matches_wildcard("*", ""));
  EXPECT_TRUE(matches_wildcard("a**", "a"));
  EXPECT_TRUE(matches_wildcard("", ""));
}

TEST(Wildcard, EverythingElseStandsForItself) {
  EXPECT_FALSE(matches_wildcard("blocks.*", "blocks"));
  EXPECT_FALSE(matches_wildcard("*.bias", "blocks.bias.weight"));
  EXPECT_FALSE(matches_wildcard("a*b*c", "a-c-b"));
  EXPECT_FALSE(matches_wildcard("Block", "Blocks"));
  EXPECT_FALSE(matches_wildcard("", "a"));
  EXPECT_FALSE(matches_wildcard("a.c", "abc"));
}

}  // namespace
}  // namespace levin
