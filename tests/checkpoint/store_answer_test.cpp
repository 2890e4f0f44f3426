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

TEST(StoreAnswer, AListIsWholeAndSaysWhereItsNextPageIs) {
  const std::string begin =
      "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  EXPECT_TRUE(is_object_list(begin + "</ListBucketResult>"));
  EXPECT_TRUE(is_object_list(begin + "<IsTruncated>false</IsTruncated></ListBucketResult>"));
  EXPECT_TRUE(is_object_list(
      begin + "<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken></ListBucketResult>"));
  EXPECT_FALSE(is_object_list(begin + "<IsTruncated>true</IsTruncated></ListBucketResult>"));
  EXPECT_FALSE(is_object_list(begin + "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"));
  for (const char* other :
       {"", "OK", "{}", "<html><body>Welcome</body></html>", "<Error><Code>NoSuchBucket</Code></Error>"})
    EXPECT_FALSE(is_object_list(other)) << other;
}

TEST(StoreAnswer, AnObjectsHasAnETagAndIsNoPage) {
  const HttpResponse object{
      .status = 200, .body = "x", .headers = {{"etag", "\"1\""}, {"content-type", "binary/octet-stream"}}};
  EXPECT_TRUE(is_of_object(object, /*has_body=*/true));
  EXPECT_FALSE(is_of_object(object, /*has_body=*/false));
  EXPECT_TRUE(is_of_object({.status = 200, .headers = {{"etag", "\"1\""}}}, /*has_body=*/false));
  EXPECT_FALSE(is_of_object({.status = 200, .body = "x"}, /*has_body=*/true));
  EXPECT_FALSE(is_of_object({.status = 200}, /*has_body=*/false));
  EXPECT_FALSE(
      is_of_object({.status = 200, .headers = {{"etag", "\"1\""}, {"content-type", "text/html; charset=utf-8"}}},
                   /*has_body=*/true));
}

}  // namespace
}  // namespace levin
