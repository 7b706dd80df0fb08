"""Reads the pages of the tree, README.md, docs/*.md and those of deploy/: their headings, links,
blocks of code and the commands in them."""
import glob
import os
import re
import shlex


class Block:
    """Code on a page: between fences, or indented."""

    def __init__(self, number, language, mark):
        self.number = number  # of its first line
        self.language = language  # "" if none is said
        self.mark = mark  # of the comment before it, <!-- test: MARK -->, or ""
        self.lines = []

    def text(self):
        return "\n".join(self.lines) + "\n"

    def commands(self):
        """(number, line) of each, with those joined that a backslash breaks."""
        number, whole = None, ""
        for i, line in enumerate(self.lines):
            if not whole:
                number = self.number + i
            whole += line
            if whole.endswith("\\"):
                whole = whole[:-1] + " "
                continue
            if whole.strip():
                yield number, whole.strip()
            whole = ""


class Page:
    """A file; the text outside its blocks, line by line, and the blocks."""

    def __init__(self, root, path):
        self.path = path
        self.blocks = []
        self.prose = []  # (number, line)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            self.read(file.read().split("\n"))
        self.anchors = self.find_anchors()

    def read(self, lines):
        block, fenced, mark, in_list = None, False, "", False
        for number, line in enumerate(lines, 1):
            fence = re.match(r"```(\w*)$", line)
            if fence and not fenced:
                block = Block(number + 1, fence[1], mark)
                self.blocks.append(block)
                fenced, mark = True, ""
                continue
            if fenced:
                if line == "```":
                    fenced, block = False, None
                else:
                    block.lines.append(line)
                continue
            found = re.fullmatch(r"<!-- test: ([\w -]+) -->", line)
            if found:
                mark = found[1]
                continue
            if line.startswith("    ") and (block or (not in_list and not lines[number - 2])):
                if block is None:
                    block = Block(number, "", mark)
                    self.blocks.append(block)
                    mark = ""
                block.lines.append(line[4:])
                continue
            if not line and block:
                block.lines.append("")
                continue
            block = None
            if line:
                in_list = bool(re.match(r"\s*([-*]|\d+\.) ", line)) or \
                    (in_list and line.startswith(" "))
            self.prose.append((number, line))

    def find_anchors(self):
        """What a link to a heading of this page may say, as GitHub makes it."""
        anchors = {}
        for _, line in self.prose:
            found = re.match(r"#+ (.*)", line)
            if found:
                slug = re.sub(r"[^\w\- ]", "", found[1].lower()).strip().replace(" ", "-")
                count = anchors.setdefault(slug, 0)
                anchors[slug] += 1
                if count:
                    anchors[f"{slug}-{count}"] = 1
        return set(anchors)

    def links(self):
        """(number, target) of each."""
        for number, line in self.prose:
            line = re.sub(r"`[^`]*`", "", line)
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                yield number, target

    def snippets(self):
        """(number, text) of what stands in backticks; it may go over the end of a line."""
        text = "\n".join(line for _, line in self.prose)
        numbers = [number for number, _ in self.prose]
        for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
            yield numbers[text.count("\n", 0, found.start())], " ".join(found[1].split())


def read_pages(root):
    names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    names += sorted(os.path.relpath(path, root)
                    for path in glob.glob(os.path.join(root, "docs", "*.md")) +
                    glob.glob(os.path.join(root, "deploy", "**", "*.md"), recursive=True))
    return [Page(root, name) for name in names if os.path.exists(os.path.join(root, name))]


def manual_blocks(path):
    """The displays of a manual page."""
    block, shown = None, False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file.read().split("\n"), 1):
            found = re.match(r"\.Dl (.*)", line)
            if line.startswith(".Bd -literal"):
                shown = True
            elif line == ".Ed":
                shown = False
            if found or (shown and not line.startswith(".")):
                if block is None:
                    block = Block(number, "", "")
                line = found[1] if found else line
                block.lines.append(re.sub(r"\\([e& -])", lambda m: {"e": "\\", "&": ""}
                                          .get(m[1], m[1]), line))
            elif block:
                yield block
                block = None


def split_command(line):
    """The words of a shell's line, or None if it is none: a drawing, say."""
    line = re.sub(r"(^|\s)#\s.*$", "", line).strip()
    line = re.sub(r"^\$ ", "", line)
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
        lexer.whitespace_split = True
        lexer.commenters = ""
        return list(lexer)
    except ValueError:
        return None


def muster_words(words):
    """The words after each `muster` that begins a command, up to the end of that command."""
    begins = True
    for i, word in enumerate(words):
        if begins and os.path.basename(word) == "muster" and not word.startswith("-"):
            rest = []
            for next_word in words[i + 1:]:
                if next_word and set(next_word) <= set("|;&<>()"):
                    break
                rest.append(next_word)
            yield rest
        # What comes before a command and leaves it one.
        begins = bool(set(word) <= set("|;&()")) or bool(re.fullmatch(r"\w+=.*", word)) or \
            (begins and (word in ("exec", "env", "sudo", "srun", "time", "nohup", "timeout", "if",
                                  "then", "do", "!") or word.startswith("--") or
                         bool(re.fullmatch(r"\d+", word))))
