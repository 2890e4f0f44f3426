#include <levin/core/checkpoint/store_answer.h>

#include <levin/core/base/utf8.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace levin {
namespace {

std::string unescaped_xml(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, char>, 5> kEntities{
      {{"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&amp;", '&'}}};
  std::string plain;
  while (!text.empty()) {
    const auto entity = std::find_if(kEntities.begin(), kEntities.end(),
                                     [&](const auto& item) { return text.starts_with(item.first); });
    plain += entity == kEntities.end() ? text.front() : entity->second;
    text.remove_prefix(entity == kEntities.end() ? 1 : entity->first.size());
  }
  return plain;
}

/// What is in all elements of that name, which have no attributes and none of that name in them.
std::vector<std::string_view> elements(std::string_view xml, const std::string& name) {
  const std::string open = "<" + name + ">";
  const std::string close = "</" + name + ">";
  std::vector<std::string_view> insides;
  for (size_t at = 0; (at = xml.find(open, at)) != std::string_view::npos;) {
    at += open.size();
    const size_t end = xml.find(close, at);
    if (end == std::string_view::npos) break;
    insides.push_back(xml.substr(at, end - at));
    at = end;
  }
  return insides;
}

}  // namespace

std::string xml_element(std::string_view xml, const std::string& name) {
  const auto all = elements(xml, name);
  return all.empty() ? "" : unescaped_xml(all.front());
}

std::string reason_of(const HttpResponse& response) {
  constexpr size_t kMostShown = 300;
  const std::string code = shown_text(xml_element(response.body, "Code"), kMostShown);
  if (code.empty()) return fmt::format("the server answered with status {}", response.status);
  std::string reason = fmt::format("{} ({})", code, shown_text(xml_element(response.body, "Message"), kMostShown));
  if (code == "NoSuchBucket") reason += "; hint: make the bucket, or see whether AWS_ENDPOINT_URL is the right server";
  if (code == "AuthorizationHeaderMalformed" || code == "PermanentRedirect")
    reason += "; hint: AWS_REGION is the bucket's region";
  if (response.status == 403)
    reason += "; hint: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and what they may do";
  return reason;
}

bool is_of_object(const HttpResponse& response, bool has_body) {
  const auto header = [&](const char* name) {
    const auto found = response.headers.find(name);
    return found == response.headers.end() ? std::string() : found->second;
  };
  if (header("etag").empty()) return false;
  if (!has_body) return response.body.empty();
  // Objects have the type of bytes, since none is given when they are stored.
  return !header("content-type").starts_with("text/html");
}

bool is_object_list(std::string_view xml) {
  const bool is_whole = xml.find("<ListBucketResult") != std::string_view::npos &&
                        xml.find("</ListBucketResult>") != std::string_view::npos;
  const bool has_more = xml_element(xml, "IsTruncated") == "true";
  return is_whole && (!has_more || !xml_element(xml, "NextContinuationToken").empty());
}

ObjectList parse_object_list(std::string_view xml, std::string_view prefix) {
  ObjectList list;
  for (const std::string_view common : elements(xml, "CommonPrefixes")) {
    std::string name = xml_element(common, "Prefix");
    if (!name.starts_with(prefix) || !name.ends_with('/')) continue;
    name = name.substr(prefix.size(), name.size() - prefix.size() - 1);
    if (!name.empty() && name.find('/') == std::string::npos) list.folders.push_back(std::move(name));
  }
  if (xml_element(xml, "IsTruncated") == "true") list.next_page = xml_element(xml, "NextContinuationToken");
  return list;
}

}  // namespace levin
