#!/usr/bin/env python3
"""Builds the pages, the READMEs of the examples and the API reference as one site that can be searched, with MkDocs.

    docs/site.py FOLDER        writes FOLDER/html/index.html; FOLDER/pages and FOLDER/mkdocs.yml are what MkDocs reads

The pages are as they are in the tree, but for links that lead out of docs. The API reference is that of build/docs/html,
where scripts/docs has made it. Exits with 1 where a link leads to no page or to no heading of it, and with 77 where
MkDocs is not installed.
"""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\()([^)\s]+)(\))")
TOP_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def pages():
    """Yields (file in the tree, name in the site)."""
    yield SOURCE / "README.md", "index.md"
    for name in TOP_PAGES:
        yield SOURCE / name, f"project/{name.lower()}"
    for page in sorted((SOURCE / "docs").glob("*.md")):
        yield page, page.name
    for page in sorted((SOURCE / "examples").glob("*/README.md")):
        yield page, f"examples/{page.parent.name}.md"


def site_link(page, name, target, names):
    """Returns a link of a page as the site has it; None for what the site does not have."""
    path, _, heading = target.partition("#")
    if re.match(r"^\w+:", target) or not path:
        return target
    file = (page.parent / path).resolve()
    if (file / "README.md").exists():
        file = file / "README.md"
    if file in names:
        found = os.path.relpath(names[file], Path(name).parent)
    elif file.is_relative_to(SOURCE / "docs/images"):
        found = os.path.relpath(Path("images") / file.name, Path(name).parent)
    else:
        return None
    return found + ("#" + heading if heading else "")


def staged(page, name, names):
    """Returns the text of a page for the site."""

    def replaced(match):
        link = site_link(page, name, match[2], names)
        if link is not None:
            return match[1] + link + match[3]
        return match[1].rstrip("(")[1:-1]  # the words alone

    # Text and code in turn: links may break between lines.
    parts = [[False, []]]
    in_code = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.lstrip().startswith("```")
        is_code = in_code or fence or line.startswith("    ")
        in_code = in_code != fence
        if parts[-1][0] != is_code:
            parts.append([is_code, []])
        # A fence's second word is for the tests.
        parts[-1][1].append(re.sub(r"^(\s*```\w+) .*", r"\1", line))
    return "\n".join(text if is_code else LINK.sub(replaced, text)
                     for is_code, text in ((is_code, "\n".join(lines)) for is_code, lines in parts)) + "\n"


def order(names):
    """The pages of docs in the order in which README names them, then the others."""
    readme = (SOURCE / "README.md").read_text(encoding="utf-8")
    first = [name for name in dict.fromkeys(re.findall(r"\]\(docs/([\w.-]+\.md)", readme))]
    rest = [name for page, name in names.items() if page.parent == SOURCE / "docs" and name not in first]
    return first + rest


class Anchors(html.parser.HTMLParser):
    """The ids and the links of a page of the site."""

    def __init__(self, text):
        super().__init__()
        self.ids = set()
        self.links = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])


def dead_links(site):
    """Returns "page: link" of each link of the site that leads nowhere in it."""
    parsed = {file.resolve(): Anchors(file.read_text(encoding="utf-8"))
              for file in site.rglob("*.html") if "reference" not in file.relative_to(site).parts}
    dead = []
    for file, page in parsed.items():
        if file.name == "404.html":
            continue
        for link in page.links:
            path, _, heading = link.partition("#")
            if re.match(r"^\w+:", link) or "reference" in path:
                continue
            target = (file.parent / path).resolve() if path else file
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                dead.append(f"{file.relative_to(site.resolve())}: {link}")
            elif heading and target in parsed and heading not in parsed[target].ids:
                dead.append(f"{file.relative_to(site.resolve())}: {link} (no such heading)")
    return sorted(set(dead))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if shutil.which("mkdocs") is None:
        print("skipped: MkDocs is not installed; hint: scripts/bootstrap --with-test-packages")
        sys.exit(77)
    folder = Path(sys.argv[1])
    names = {page.resolve(): name for page, name in pages()}
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for page, name in names.items():
        target = folder / "pages" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(staged(page, name, names), encoding="utf-8")
    shutil.copytree(SOURCE / "docs/images", folder / "pages/images")
    navigation = [{"Levin": "index.md"}, {"Guide": order(names)},
                  {"Examples": [name for name in names.values() if name.startswith("examples/")]},
                  {"Project": [name for name in names.values() if name.startswith("project/")]}]
    reference = SOURCE / "build/docs/html"
    if (reference / "index.html").exists():
        shutil.copytree(reference, folder / "pages/reference", dirs_exist_ok=True)
        navigation.append({"API reference": "reference/index.html"})
    # JSON is YAML.
    (folder / "mkdocs.yml").write_text(json.dumps({
        "site_name": "Levin", "site_description": "A high-level trainer for C++ on LibTorch", "docs_dir": "pages",
        "site_dir": "html", "use_directory_urls": False, "theme": {"name": "readthedocs", "navigation_depth": 3},
        "plugins": ["search"], "nav": navigation}, indent=1), encoding="utf-8")
    subprocess.run(["mkdocs", "build", "--quiet", "--clean", "--config-file", str(folder / "mkdocs.yml")], check=True,
                   stderr=subprocess.PIPE, text=True)
    dead = dead_links(folder / "html")
    if dead:
        sys.exit("docs: links that lead nowhere:\n" + "\n".join(dead))


if __name__ == "__main__":
    main()
