#include <levin/core/export/einsum_equation.h>

#include <gtest/gtest.h>

namespace levin {
namespace {

/// The equation of operands with so many dimensions, all of one size.
std::string equation(std::string_view given, const std::vector<size_t>& ranks) {
  std::vector<std::vector<int64_t>> sizes;
  for (const size_t rank : ranks) sizes.emplace_back(rank, 3);
  return explicit_einsum(given, sizes).text;
}

TEST(EinsumEquation, HasALetterForEveryDimensionAndSaysItsResult) {
  EXPECT_EQ(equation("ij,jk->ik", {2, 2}), "ij,jk->ik");
  EXPECT_EQ(equation(" i j , j k -> i k ", {2, 2}), "ij,jk->ik");
  EXPECT_EQ(equation("ij,jk", {2, 2}), "ij,jk->ik");
  EXPECT_EQ(equation("bZ,ba", {2, 2}), "bZ,ba->Za") << "capitals come first";
  EXPECT_EQ(equation("ii", {2}), "ii->");
  EXPECT_EQ(equation("ba", {2}), "ba->ab");
  EXPECT_EQ(equation("i,i->", {1, 1}), "i,i->");
}

TEST(EinsumEquation, AnEllipsisIsAsManyLettersAsItHides) {
  EXPECT_EQ(equation("b...d,b...e->bde", {3, 3}), "bAd,bAe->bde");
  EXPECT_EQ(equation("b...d,b...e->b...de", {4, 4}), "bABd,bABe->bABde");
  EXPECT_EQ(equation("b...d,b...e->b...de", {4, 3}), "bABd,bBe->bABde") << "as in broadcasting";
  EXPECT_EQ(equation("b...d,b...e->bde", {2, 2}), "bd,be->bde");
  EXPECT_EQ(equation("...ij,...jk", {4, 3}), "ABij,Bjk->ABik");
  EXPECT_EQ(equation("A...,B...->AB...", {2, 2}), "AC,BC->ABC") << "no letter of the equation's own";
}

TEST(EinsumEquation, IsEmptyWhereLettersRunOut) {
  EXPECT_EQ(equation("a...->...a", {53}).size(), 0);
  EXPECT_GT(equation("a...->...a", {52}).size(), 100);
}

TEST(EinsumEquation, WhatIsBroadcastIsNoDimensionOfItsOperand) {
  const EinsumEquation made = explicit_einsum("bij,bij->bi", {{-1, 1, 4}, {-1, 2, 4}});
  EXPECT_EQ(made.text, "bj,bij->bi");
  EXPECT_EQ(made.squeezed, (std::vector<std::vector<int64_t>>{{1}, {}}));
  const EinsumEquation hidden = explicit_einsum("...i,...i->...", {{1, 3, 4}, {2, 1, 1, 4}});
  EXPECT_EQ(hidden.text, "BCi,ABi->ABC");
  EXPECT_EQ(hidden.squeezed, (std::vector<std::vector<int64_t>>{{}, {2}}));
  EXPECT_EQ(explicit_einsum("bi,bi->b", {{1, 1}, {1, 1}}).text, "bi,bi->b") << "of one size in both";
  EXPECT_EQ(explicit_einsum("bi,ci->bc", {{1, 4}, {-1, 4}}).text, "bi,ci->bc");
}

}  // namespace
}  // namespace levin
