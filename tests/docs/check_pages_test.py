#!/usr/bin/env python3
"""Shows that docs/check_pages.py finds what a page lacks or has wrong, and reads headers as they are written."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
sys.dont_write_bytecode = True

import check_pages  # noqa: E402
import declarations  # noqa: E402
import header_table  # noqa: E402

HEADER = """
#pragma once
#include <vector>
namespace other { class Elsewhere; }
namespace levin {
class Declared;
namespace detail { void inner(); }
/// A comment with class Commented { in it.
enum class Word { kOne, kTwo };
struct BoxOptions {
  int64_t size = 1;                       ///< numbers
  std::map<std::string, int> names = {};  ///< pairs
  std::optional<double> weight;
  static void describe(Schema<BoxOptions>& schema);
  bool operator==(const BoxOptions&) const = default;
};
template <class T>
class Box : public Base {
 public:
  explicit Box(T value) : value_{value} {}
  virtual bool on_open(const Batch& /*batch*/, int64_t /*index*/) { return true; }
  virtual std::vector<std::shared_ptr<T>> all() const = 0;
  class Guard {
   public:
    void hold();
   private:
    int held_;
  };
  T take();

 private:
  T value_;
  void hide();
};
using Boxes = std::vector<Box<int>>;
template <class T>
std::shared_ptr<T> make(const T& options = {}) {
  return nullptr;
}
inline constexpr int kNumber = 3;
}  // namespace levin
#define LEVIN_BOX(Name) class Name {}
"""


class Declarations(unittest.TestCase):
    def test_public_names(self):
        self.assertEqual(
            declarations.public_names(HEADER), ["Word", "BoxOptions", "Box", "Boxes", "make()", "LEVIN_BOX()"]
        )

    def test_fields_in_order(self):
        self.assertEqual(declarations.fields_of(HEADER, "BoxOptions"), ["size", "names", "weight"])

    def test_hooks_with_their_types(self):
        self.assertEqual(
            declarations.hooks_of(HEADER, "Box"),
            {"on_open": ("bool", ("const Batch&", "int64_t")), "all": ("std::vector<std::shared_ptr<T>>", ())},
        )

    def test_public_methods(self):
        self.assertEqual(declarations.methods_of(HEADER, "Box"), ["on_open", "all", "take"])


class Pages(unittest.TestCase):
    MODULE = "class Module { public: virtual bool on_open(const Batch& /*batch*/, int64_t /*i*/) { return true; } };"
    CALLBACK = "class Callback { public: virtual void on_open(Trainer&, Module&, const Batch&, int64_t /*i*/) {} };"

    def hooks(self, page):
        return list(check_pages.check_hooks(page, self.MODULE, self.CALLBACK))

    def test_a_hook_as_it_is(self):
        self.assertEqual(self.hooks("| `bool on_open(const Batch& batch, int64_t index)` | M, C | |"), [])

    def test_a_hook_that_is_missing_or_has_changed(self):
        self.assertIn("on_open of Module is missing", self.hooks("nothing")[0])
        self.assertIn("it is", self.hooks("| `bool on_open(const Batch& batch)` | M, C | |")[0])

    def test_fields_in_another_order(self):
        page = "| option | default |\n|---|---|\n| `names` | |\n| `size` | |\n| `weight` | |\n"
        self.assertEqual(len(list(check_pages.check_fields("page", page, "option", HEADER, "BoxOptions"))), 1)
        page = page.replace("size", "other").replace("names", "size").replace("other", "names")
        self.assertEqual(list(check_pages.check_fields("page", page, "option", HEADER, "BoxOptions")), [])

    def test_a_metric_without_a_row(self):
        header = "struct GapOptions {\n  int64_t width = 1;\n};\nclass Gap : public Metric {};"
        self.assertIn("Gap is missing", list(check_pages.check_metrics("", [header]))[0])
        row = "| `Gap` | {} | `(x)` | a gap |"
        self.assertIn("options of Gap", list(check_pages.check_metrics(row.format("none"), [header]))[0])
        self.assertEqual(list(check_pages.check_metrics(row.format("`width` 1"), [header])), [])

    def test_options_in_another_order_than_the_struct(self):
        page = "## Things\n\n### `box`\n\n| option | type |\n|---|---|\n| `names` | |\n| `size` | |\n"
        self.assertEqual(len(list(check_pages.check_order_of_options(page, [HEADER]))), 1)

    def test_a_page_that_nobody_finds(self):
        self.assertEqual(len(list(check_pages.check_listing("[a](docs/a.md)", ["a.md", "b.md"]))), 1)

    def test_the_table_of_headers_leaves_out_the_options_of_a_class(self):
        self.assertEqual(header_table.words(["BoxOptions", "Box", "OtherOptions"]), ["Box", "OtherOptions"])


if __name__ == "__main__":
    unittest.main()
