#include <levin/loggers/random_id.h>

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace levin {
namespace {

TEST(RandomId, IsOfLettersAndDigitsAndNeverTheSame) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = random_id(12);
    EXPECT_EQ(id.size(), 12u);
    EXPECT_EQ(id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789"), std::string::npos) << id;
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(random_id(0), "");
}

}  // namespace
}  // namespace levin
