#pragma once

#include <string_view>

/// Files that cmake/EmbedFiles.cmake makes part of the program.
namespace levin::report::assets {

extern const std::string_view kPage;    ///< page.html, with {{NAME}} where the parts go
extern const std::string_view kStyle;   ///< page.css
extern const std::string_view kScript;  ///< page.js
// dygraphs, by which the curves are drawn.
extern const std::string_view kChartStyle;
extern const std::string_view kChartScript;
extern const std::string_view kChartLicense;

}  // namespace levin::report::assets
