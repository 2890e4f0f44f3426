#include <levin/core/nn/module_type_name.h>

#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(ModuleTypeName, IsWhatUsersCallIt) {
  EXPECT_EQ(short_type_name("torch::nn::LinearImpl"), "Linear");
  EXPECT_EQ(short_type_name("levin::(anonymous namespace)::Classifier"), "Classifier");
  EXPECT_EQ(short_type_name("levin::detail::UnitOfSignature<my::BlockImpl, at::Tensor (my::BlockImpl::*)(at::Tensor)>"),
            "Block");
  EXPECT_EQ(short_type_name("my::Wrap<my::Inner>"), "Wrap<my::Inner>");
  EXPECT_EQ(short_type_name("Impl"), "Impl");
}

}  // namespace
}  // namespace levin
