"""What the public headers declare, as far as the pages name it: no parser of C++, but enough for how Levin writes it."""

import re

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TYPE = re.compile(r"^(?:template\s*<.*?>\s*)?(?:requires .*? )?(?:class|struct|enum class|concept)\s+(?:\[\[\w+\]\]\s*)?(\w+)(?![\w:<])")
_ALIAS = re.compile(r"^(?:template\s*<.*?>\s*)?using\s+(\w+)\s*=")
_FUNCTION = re.compile(r"(\w+)\($")
_MACRO = re.compile(r"^#define (\w+)\(", re.MULTILINE)


def without_comments(text):
    return _COMMENTS.sub("", text)


def _matching(text, at):
    """The place after the bracket that closes the one at `at`."""
    pairs = {"{": "}", "(": ")"}
    opening, closing, depth = text[at], pairs[text[at]], 0
    for place in range(at, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place + 1
    raise ValueError(f"a '{opening}' without an end")


def statements(text):
    """Yields (namespaces, statement) of a header: each declaration at the scope of a namespace, a body as `{}`."""
    text = re.sub(r"^\s*#.*(?:\\\n.*)*$", "", without_comments(text), flags=re.MULTILINE)
    namespaces, start, place = [], 0, 0
    while place < len(text):
        character = text[place]
        if character == "{":
            head = " ".join(text[start:place].split())
            found = re.fullmatch(r"(?:inline )?namespace\s*([\w:]*)", head)
            if found:
                namespaces.append(found[1])
                place += 1
                start = place
                continue
            end = _matching(text, place)
            text_after = text[end:].lstrip()
            is_type = re.search(r"\b(class|struct|enum|concept)\s+\w+[^()]*$", head) or "=" in head.split("(")[0]
            if is_type or not text_after.startswith((";", ",")):
                if is_type and text_after.startswith(";"):
                    end = text.index(";", end) + 1
                yield tuple(namespaces), head + " {}"
                start = end
            place = end
        elif character == "(":
            place = _matching(text, place)
        elif character == "}":
            namespaces.pop()
            place += 1
            start = place
        elif character == ";":
            head = " ".join(text[start:place].split())
            if head:
                yield tuple(namespaces), head
            place += 1
            start = place
        else:
            place += 1


def public_names(text):
    """The types, functions and macros that a header declares for users, as written below namespace levin."""
    names = []
    for namespaces, statement in statements(text):
        scope = "::".join(namespaces).split("::")
        if scope[0] != "levin" or "detail" in scope:
            continue
        prefix = "".join(f"{part}::" for part in scope[1:])
        named = _TYPE.match(statement) or _ALIAS.match(statement)
        if named:
            # `class X;` says that it is declared elsewhere.
            if statement.endswith("{}") or " = " in statement:
                names.append(prefix + named[1])
        elif "(" in statement and not statement.startswith(("extern", "friend", "static_assert", "enum")):
            function = _FUNCTION.search(statement[: statement.index("(") + 1])
            if function and function[1] != "operator" and "operator" not in statement.split("(")[0]:
                names.append(prefix + function[1] + "()")
    names += [macro + "()" for macro in _MACRO.findall(without_comments(text))]
    return list(dict.fromkeys(names))


def body_of(text, name):
    """The text between the braces of a class or struct."""
    text = without_comments(text)
    found = re.search(rf"\b(?:class|struct)\s+{name}\b[^;{{]*{{", text)
    if found is None:
        raise ValueError(f"there is no class {name}")
    return text[found.end() : _matching(text, found.end() - 1) - 1]


def fields_of(text, name):
    """The data members of a struct of options, in order."""
    body = re.sub(r"\bstatic [^;]*;", "", body_of(text, name))
    fields = []
    for statement in body.split(";"):
        statement = " ".join(statement.split())
        found = re.match(r"^[\w:<>, *]+?[ >](\w+)(?: = .*)?$", statement)
        if found and "(" not in statement.split("=")[0]:
            fields.append(found[1])
    return fields


def types_of(parameters):
    """The types of a parameter list, each without its name: `const Batch& batch, int64_t` -> (`const Batch&`, `int64_t`)."""
    types = []
    for parameter in re.split(r",(?![^<]*>)", parameters):
        words = parameter.split()
        if not words:
            continue
        # A name follows the type; a type alone is one word, or ends in & or *, or follows `const`.
        if len(words) > 1 and re.fullmatch(r"\w+", words[-1]) and words[-2] != "const":
            words.pop()
        types.append(" ".join(words))
    return tuple(types)


def hooks_of(text, name):
    """{hook: (what it returns, types of its parameters)} of the virtual members of a class."""
    hooks = {}
    for found in re.finditer(r"\bvirtual\s+([^;{}()]+?)\s*\b(\w+)\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*(?:const)?\s*(?:= 0)?\s*[;{]", body_of(text, name)):
        hooks[found[2]] = (" ".join(found[1].split()), types_of(found[3]))
    return hooks


def methods_of(text, name):
    """The names of the public member functions of a class."""
    body = body_of(text, name)
    for inner in iter(lambda: body.find("{"), -1):
        body = body[:inner] + ";" + body[_matching(body, inner) :]
    public = body.split("private:")[0].split("protected:")[0]
    heads = [statement.split("(")[0].split() for statement in public.split(";") if "(" in statement]
    methods = [head[-1] for head in heads if len(head) > 1 and re.fullmatch(r"[a-z]\w*", head[-1])]
    return list(dict.fromkeys(methods))
