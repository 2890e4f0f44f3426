#include <levin/core/base/http_client.h>

#include "../loggers/stand_in_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

namespace levin {
namespace {

TEST(WithoutUser, TakesNameAndPasswordOut) {
  struct Case {
    std::string given, url, user_name, password;
  };
  const std::vector<Case> cases{
      {"http://host:5000", "http://host:5000", "", ""},
      {"", "", "", ""},
      {"http://ada@host", "http://host", "ada", ""},
      {"https://ada:secret@host:5000/a/b?c=d", "https://host:5000/a/b?c=d", "ada", "secret"},
      {"http://:secret@host", "http://host", "", "secret"},
      {"http://ada%40work:a%3Ab%2F@[::1]:5000/", "http://[::1]:5000/", "ada@work", "a:b/"},
      {"postgresql://ada:secret@host/db", "postgresql://host/db", "ada", "secret"},
      {"ada:secret@host", "host", "ada", "secret"},
      // What ought to have been escaped.
      {"http://ada:se@cret@host", "http://host", "ada", "se@cret"},
      {"http://ada:se/cret?#@host:80/", "http://host:80/", "ada", "se/cret?#"},
      // An '@' that is no user's.
      {"http://host:5000/a@b", "http://host:5000/a@b", "", ""},
      {"http://host/a?b=c@d", "http://host/a?b=c@d", "", ""},
      {"http://[::1]/a@b", "http://[::1]/a@b", "", ""},
      {"/folder/a@b", "/folder/a@b", "", ""},
  };
  for (const auto& item : cases) {
    const UrlWithoutUser result = without_user(item.given);
    EXPECT_EQ(result.url, item.url) << item.given;
    EXPECT_EQ(result.user_name, item.user_name) << item.given;
    EXPECT_EQ(result.password, item.password) << item.given;
  }
}

TEST(HttpClient, AnErrorsBodyNeverShowsWhatAHeaderCarried) {
  testing::StandInServer server(
      [](const testing::Request& request) { return testing::Answer{.status = 400, .body = "got " + request.head}; });
  const std::atomic<bool> stop = false;
  const HttpResponse of_token = HttpClient({.token = "a-secret-token"}).send({.url = server.uri()}, stop);
  EXPECT_NE(of_token.body.find("Authorization: Bearer ***"), std::string::npos) << of_token.body;
  EXPECT_EQ(of_token.body.find("a-secret"), std::string::npos) << of_token.body;
  const HttpResponse of_password =
      HttpClient({.user_name = "ada", .password = "lovelace"}).send({.url = server.uri()}, stop);
  EXPECT_NE(of_password.body.find("Authorization: Basic ***"), std::string::npos) << of_password.body;
  EXPECT_EQ(of_password.body.find("YWRhOmxvdmVsYWNl"), std::string::npos) << of_password.body;
}

}  // namespace
}  // namespace levin
