"""Changes of C source, one place at a time, all in one program: each stands beside the original, and a number in the
environment says at run time which one is taken (mutant.h). So a tree is built once for all of its mutants.

The source is not parsed, only cut into tokens: an operator's operands reach to the next operator that binds less.
"""

import bisect
import dataclasses
import re

TOKEN = re.compile(
    r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\d[\w.]*|<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&"
    r"|\|\||[-+*/%&|^]=|\S",
    re.S,
)
PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
OTHER = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
}  # fmt: skip
NAMES = {"&&": "and is or", "||": "and is or", "+": "plus is minus", "-": "plus is minus"}
ENDS = {";", "{", "}", ",", "?", ":", "=", "return", "case", "else", "do"} | {o + "=" for o in "+-*/%&|^"}
ENDS |= {"<<=", ">>="}
OPENING, CLOSING = "([{", ")]}"
CHECKS = ("XFI_CHECK", "XFI_CHECK_DONE")
TEXTS = re.compile(r"xfi_set_error|v?snprintf|xfi_text_\w+|xfi_span_\w+|xfi_trace_\w+|static_assert|_Static_assert")
STATEMENT = re.compile(
    r"(XFI_TRY(?:_DONE)?\(.+\);|[\w>.\-\[\]]+ (=|\+=|-=|\|=) [^=].*;|\(void\)[\w>.\-]+\(.*\);|xfi_\w+\(.*\);)$"
)
DECLARATION = re.compile(r"(const|int|size_t|u?int\d+_t|bool|char|xfer_\w+|xfi_\w+|static|struct|unsigned) +\*?\w+ =")


@dataclasses.dataclass
class Change:
    what: str
    start: int
    end: int
    new: str  # None: the statement is left out
    number: int = -1  # in the program

    def is_guard(self):
        return self.what == "guard removed"


def tokens_of(text):
    """[(start, text)] without comments and lines of the preprocessor."""
    blank = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
    covered = [m.span() for m in blank.finditer(text)]
    starts = [s for s, _ in covered]
    made = []
    for m in TOKEN.finditer(text):
        i = bisect.bisect_right(starts, m.start()) - 1
        if m.group().startswith("/*") or (i >= 0 and m.start() < covered[i][1]):
            continue
        made.append((m.start(), m.group()))
    return made


def bodies(text):
    """(start, end) of the bodies of functions: in this style their braces stand in the first column."""
    for m in re.finditer(r"\)\n\{\n(.*?)\n\}", text, re.S):
        yield m.start(1), m.end(1)


class Source:
    def __init__(self, text):
        self.text = text
        self.tokens = tokens_of(text)
        self.partner = self._partners()
        self.skipped = self._texts()

    def _partners(self):
        partner, open_ones = {}, []
        for i, (_, t) in enumerate(self.tokens):
            if t in OPENING:
                open_ones.append(i)
            elif t in CLOSING and open_ones:
                j = open_ones.pop()
                partner[i], partner[j] = j, i
        return partner

    def _texts(self):
        """Tokens that only make texts: the arguments of XFI_CHECK after its condition, and the like."""
        skipped = set()
        for i, (_, t) in enumerate(self.tokens[:-1]):
            if self.tokens[i + 1][1] != "(" or i + 1 not in self.partner:
                continue
            end = self.partner[i + 1]
            if TEXTS.fullmatch(t):
                skipped.update(range(i, end))
            elif t in CHECKS:
                skipped.update(range(self._comma(i + 2), end))
        return skipped

    def _comma(self, i):
        while self.tokens[i][1] != ",":
            i = self.partner[i] + 1 if self.tokens[i][1] in OPENING else i + 1
        return i

    def _left(self, i, binds):
        """The first token of what stands left of operator i."""
        j = i - 1
        while True:
            t = self.tokens[j][1]
            if t in CLOSING and t != "}":
                j = self.partner[j] - 1
                continue
            if t in ENDS or t in OPENING or (PRECEDENCE.get(t, 99) < binds and self._is_binary(j)):
                return j + 1
            j -= 1

    def _right(self, i, binds):
        """The last token of what stands right of operator i."""
        j = i + 1
        while True:
            t = self.tokens[j][1]
            if t in OPENING and t != "{":
                j = self.partner[j] + 1
                continue
            if t in ENDS or t in CLOSING or (PRECEDENCE.get(t, 99) <= binds and self._is_binary(j)):
                return j - 1
            j += 1

    def _is_binary(self, i):
        """clang-format puts spaces around binary operators, and none after unary ones."""
        start, t = self.tokens[i]
        return self.text[start - 1] in " \n" and self.text[start + len(t)] in " \n"

    def _end(self, i):
        return self.tokens[i][0] + len(self.tokens[i][1])

    def operators(self, lo, hi):
        for i, (start, t) in enumerate(self.tokens):
            if not lo <= start < hi or t not in OTHER or i in self.skipped or not self._is_binary(i):
                continue
            first, last = self._left(i, PRECEDENCE[t]), self._right(i, PRECEDENCE[t])
            if first >= i or last <= i:
                continue
            a, b = self.tokens[first][0], self._end(last)
            what = NAMES.get(t, f"{t} is {OTHER[t]}")
            yield start, Change(what, a, b, self.text[a:start] + OTHER[t] + self.text[start + len(t) : b])

    def conditions(self, lo, hi):
        for i, (start, t) in enumerate(self.tokens):
            if not lo <= start < hi:
                continue
            if t in CHECKS:
                last = self._comma(i + 2) - 1
                if self.tokens[i + 2][1] != "false" or last != i + 2:
                    yield start, Change("guard removed", self.tokens[i + 2][0], self._end(last), "1")
            if t == "if" and self.tokens[i + 1][1] == "(":
                close = self.partner[i + 1]
                if self.tokens[close + 1][1] in ("return", "continue", "break"):
                    inner = self.tokens[i + 2][0], self.tokens[close - 1][0] + len(self.tokens[close - 1][1])
                    yield start, Change("early exit removed", *inner, "0")

    def statements(self, lo, hi):
        at = {start: i for i, (start, _) in enumerate(self.tokens)}
        for m in re.compile(r"^[ \t]+(\S.*;)[ \t]*$", re.M).finditer(self.text, lo, hi):
            code, start = m.group(1), m.start(1)
            if start not in at or at[start] in self.skipped or '"' in code or code.startswith("return"):
                continue
            before = self.tokens[at[start] - 1][1]
            if before in (";", "{", "}", ")", "else", ":") and STATEMENT.match(code) and not DECLARATION.match(code):
                yield start, Change("statement removed", start, m.end(1), None)


def changes(text):
    """All changes of a file, in order of place."""
    source, made = Source(text), []
    for lo, hi in bodies(text):
        for kind in (source.conditions, source.operators, source.statements):
            made += kind(lo, hi)
    return [c for _, c in sorted(made, key=lambda c: (c[0], c[1].what))]


def line_of(text, change):
    """(number from 1, the line) where a change begins."""
    start = text.rfind("\n", 0, change.start) + 1
    return text.count("\n", 0, start) + 1, text[start : text.find("\n", start)].strip()


def function_of(text, change):
    """The name of the function that a change lies in."""
    head = text[: text.rindex(")\n{\n", 0, change.start)]
    return re.findall(r"^\w.*?(\w+)\(", head, re.M)[-1]


def instrumented(text, chosen, header):
    """The file with all chosen changes in it; its lines keep their numbers."""

    def flat(piece):
        return re.sub(r"\s*\n\s*", " ", piece)

    def inner(lo, hi, todo):
        made, at = [], lo
        while todo:
            change, todo = todo[0], todo[1:]
            within = [c for c in todo if c.start >= change.start and c.end <= change.end]
            todo = todo[len(within) :]
            made.append(text[at : change.start])
            original = inner(change.start, change.end, within)
            if change.new is None:
                made.append(f"{{ if (!XFI_MUTANT({change.number})) {original} }}")
            else:
                made.append(f"(XFI_MUTANT({change.number}) ? ({flat(change.new)}) : ({original}))")
            at = change.end
        return "".join(made) + text[at:hi]

    ordered = sorted(chosen, key=lambda c: (c.start, -c.end, c.new is not None))
    last = text.rfind("\n#include")  # which feature macros stand before
    at = text.find("\n", last + 1) + 1
    line = text.count("\n", 0, at) + 1
    return f'{text[:at]}#include "{header}"\n#line {line}\n' + inner(at, len(text), ordered)
