#include <levin/core/base/type_name.h>

#include <gtest/gtest.h>

namespace levin {
namespace {

struct Plain {};

TEST(TypeName, HasNoScopes) {
  struct Local {};
  EXPECT_EQ(short_class_name(typeid(Plain)), "Plain");
  EXPECT_EQ(short_class_name(typeid(Local)), "Local");
  EXPECT_EQ(without_scopes("app::(anonymous namespace)::Block<a::B>"), "Block<a::B>");
  EXPECT_EQ(without_scopes("f(std::string const&)::Local"), "Local");
  EXPECT_EQ(text_up_to("Impl<a, b>, c", ","), "Impl<a, b>");
}

}  // namespace
}  // namespace levin
