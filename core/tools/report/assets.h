#pragma once

#include <string_view>

/// Files that cmake/EmbedFiles.cmake makes part of the program.
namespace levin::report::assets {

extern const std::string_view kPage;  ///< page.html, with {{NAME}} where the parts go
extern const std::string_view kStyle;
extern const std::string_view kValuesScript;
extern const std::string_view kChartsScript;
extern const std::string_view kFiguresScript;
extern const std::string_view kStudiesScript;
extern const std::string_view kSectionsScript;
// The library by which curves are drawn.
extern const std::string_view kDygraphStyle;
extern const std::string_view kDygraphScript;
extern const std::string_view kDygraphLicense;

}  // namespace levin::report::assets
