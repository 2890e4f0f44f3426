#pragma once

#include <levin/core/base/http_client.h>

#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Returns the text of an answer's first XML element of that name; empty where there is none. Answers of stores of
/// objects (Amazon S3's REST API) have no attributes in what is read here, and no element in one of its own name.
std::string xml_element(std::string_view xml, const std::string& name);

/// Returns what a server says of a refusal, on one line, without what it quotes of the request.
std::string reason_of(const HttpResponse& response);

/// Returns whether an answer without an error's status is one about an object: of a read, or, where `has_body` is
/// false, of a write. Whatever is between here and the store (a network's login page, a proxy) may answer with status
/// 200, too.
bool is_of_object(const HttpResponse& response, bool has_body);
/// Returns whether a text is a page of a list of objects, and says where the next one is if there are more.
bool is_object_list(std::string_view xml);

/// One page of a list of objects.
struct ObjectList {
  std::vector<std::string> folders;  ///< the names directly below the prefix that have objects below them
  std::string next_page;             ///< its token; empty: there is none
};
/// Reads a page of the list of what is below a prefix, which is empty or ends with a slash. What is not below it is
/// left out.
ObjectList parse_object_list(std::string_view xml, std::string_view prefix);

}  // namespace levin
