#include <levin/core/checkpoint/store_answer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(StoreAnswer, ARefusalIsOneLineOfBoundedLength) {
  const std::string body = "<Error><Code>Slow\x1b[31mDown</Code><Message>a\nb &lt;c&gt; " + std::string(100'000, 'x') +
                           "</Message><StringToSign>a secret</StringToSign></Error>";
  const std::string reason = reason_of({.status = 503, .body = body});
  EXPECT_THAT(reason, StartsWith("Slow [31mDown (a b <c> xxx"));
  EXPECT_THAT(reason, EndsWith("x...)"));
  EXPECT_LT(reason.size(), 400);
}

TEST(StoreAnswer, WhatIsNoXmlIsItsStatus) {
  for (const std::string body : {"", "<Code>", "<html>Bad gateway</html>"})
    EXPECT_EQ(reason_of({.status = 502, .body = body}), "the server answered with status 502") << body;
}

TEST(StoreAnswer, AListHasOnlyWhatIsDirectlyBelowItsPrefix) {
  const ObjectList list = parse_object_list(
      "<R><IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
      "<CommonPrefixes><Prefix>k/a/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>k/</Prefix></CommonPrefixes>"
      "<CommonPrefixes><Prefix>other/b/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>k/c</Prefix></CommonPrefixes>"
      "<CommonPrefixes><Prefix>k/d/e/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>k/f/</Prefix>",
      "k/");
  EXPECT_THAT(list.folders, ElementsAre("a"));
  EXPECT_THAT(list.next_page, IsEmpty());
}

}  // namespace
}  // namespace levin
