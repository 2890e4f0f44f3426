// LibTorch ships the headers of its own {fmt}, which come first on the include path, but not the compiled half that
// they declare, and a libfmt of another version has other symbols. This file is that half, compiled once: defining
// FMT_HEADER_ONLY instead would cost four seconds in every source file that formats. (A LibTorch without those
// headers uses the system's libfmt; CMakeLists.txt then leaves this file out.)

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;

template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);

}  // namespace detail
FMT_END_NAMESPACE
