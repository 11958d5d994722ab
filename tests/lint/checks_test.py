"""Every check of scripts/ must fail on what it forbids: planted faults in temporary trees."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
CLEAN_HEADER = "#pragma once\n\n#include <string>\n"


class CheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def run_check(self, script, *arguments):
        return subprocess.run([sys.executable, str(SCRIPTS / script), *arguments],
                              capture_output=True, text=True)

    def assert_clean(self, script, *arguments):
        run = self.run_check(script, *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)

    def assert_rejects(self, message, script, *arguments):
        run = self.run_check(script, *arguments)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn(message, run.stderr)


class IncludesTest(CheckTest):
    def setUp(self):
        super().setUp()
        self.write("base/status.h", CLEAN_HEADER)
        self.write("engine/request.h", '#pragma once\n#include "base/status.h"\n')

    def assert_include_rejected(self, message, name, line):
        self.write(name, line + "\n")
        self.assert_rejects(message, "check_includes.py", str(self.root))

    def test_accepts_direct_and_indirect_uses(self):
        self.write("server/chat.cc", '#include "engine/request.h"\n#include "base/status.h"\n')
        self.assert_clean("check_includes.py", str(self.root))

    def test_rejects_an_upward_arrow(self):
        self.assert_include_rejected("base/ may not include engine/", "base/log.h",
                                     '#include "engine/request.h"')

    def test_rejects_a_sideways_arrow(self):
        self.assert_include_rejected("image/ may not include engine/", "image/decode.cc",
                                     '#  include "engine/request.h"')

    def test_rejects_an_unknown_folder(self):
        self.assert_include_rejected("not in the table", "util/strings.h", "#include <string>")

    def test_rejects_a_file_outside_the_folders(self):
        self.assert_include_rejected("not in the table", "main.cc", "int main() {}")

    def test_rejects_a_relative_path(self):
        self.assert_include_rejected("not a path from src/", "base/log.cc", '#include "status.h"')

    def test_rejects_angle_brackets_around_our_own_header(self):
        self.assert_include_rejected("is ours", "base/log.cc", "#include <base/status.h>")

    def test_accepts_a_source_that_begins_with_its_header(self):
        self.write("base/status.cc", '// Codes.\n#include "base/status.h"\n#include <vector>\n')
        self.assert_clean("check_includes.py", str(self.root))

    def test_rejects_a_source_that_hides_what_its_header_lacks(self):
        message = 'base/status.cc: the first include must be "base/status.h"'
        self.assert_include_rejected(message, "base/status.cc",
                                     '#include <vector>\n#include "base/status.h"')
        self.assert_include_rejected(message, "base/status.cc", "int x;")

    def test_rejects_a_header_without_pragma_once(self):
        self.assert_include_rejected("base/log.h: lacks #pragma once", "base/log.h",
                                     "#include <string>")

    def test_rejects_an_empty_tree(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assert_rejects("found no files", "check_includes.py", empty)


class FileSizeTest(CheckTest):
    def test_accepts_the_cap_and_notes_what_is_over_the_aim(self):
        self.write("src/base/a.cc", "\n" * 800)
        run = self.run_check("check_file_size.py", str(self.root))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("800 src/base/a.cc", run.stdout)

    def test_rejects_one_line_more(self):
        self.write("src/base/a.cc", "\n" * 801)
        self.assert_rejects("801 lines", "check_file_size.py", str(self.root))


class WordsTest(CheckTest):
    def assert_line_rejected(self, what, line):
        self.write("docs/page.md", "first line\n" + line + "\n")
        self.assert_rejects(f"docs/page.md:2: {what}", "check_words.py", str(self.root))

    def test_accepts_ordinary_text_and_skips_binary_files(self):
        self.write("docs/page.md", "role: assistant, session_id, claude-x, /v1/models, build/work/x\n")
        self.write("docs/picture.png", b"\x89PNG\xff TODO")
        self.assert_clean("check_words.py", str(self.root))

    def test_rejects_paths_of_one_machine(self):
        self.assert_line_rejected("path of one machine", "see /work/shared/golden")
        self.assert_line_rejected("path of one machine", 'open("/root/x")')

    def test_rejects_promises(self):
        self.assert_line_rejected("promise for later", "// TODO: later")
        self.assert_line_rejected("promise for later", "// FIXME")

    def test_rejects_issue_numbers(self):
        self.assert_line_rejected("number of an issue", "see issue #12")

    def test_rejects_talk_about_the_making(self):
        self.assert_line_rejected("talk about the making", "Co-Authored-By: somebody")
        self.assert_line_rejected("talk about the making", "in this session we")

    def test_rejects_registry_hosts(self):
        self.assert_line_rejected("host of a registry", "pip install -i https://pypi.org/simple x")


class BugCasesTest(CheckTest):
    COUNTS = (("A", 12), ("B", 24), ("C", 6), ("D", 8), ("E", 11), ("F", 10), ("G", 5), ("H", 3),
              ("I", 4), ("J", 7), ("K", 7), ("L", 2))

    def setUp(self):
        super().setUp()
        numbers = [(letter, number) for letter, count in self.COUNTS
                   for number in range(1, count + 1)]
        self.rows = ["| %s-%02d | symptom | `%s%02d_Held` |" % (2 * row) for row in numbers]
        self.write("tests/a_test.cc", "".join("TEST(X, %s%02d_Held) {}\n" % row for row in numbers))

    def page(self, rows):
        self.write("docs/bug_cases.md", "\n".join(rows) + "\n")

    def test_accepts_a_whole_page(self):
        self.page(self.rows)
        self.assert_clean("check_bug_cases.py", str(self.root))

    def test_rejects_a_missing_row(self):
        self.page(self.rows[:-1])
        self.assert_rejects("L02", "check_bug_cases.py", str(self.root))

    def test_rejects_a_test_that_is_not_there(self):
        self.rows[1] = "| A-02 | symptom | `SomethingElse` |"
        self.page(self.rows)
        self.assert_rejects("SomethingElse", "check_bug_cases.py", str(self.root))

    def test_rejects_a_test_that_no_row_names(self):
        self.page(self.rows)
        self.write("tests/b_test.cc", "TEST(X, B02_Other) {}\n")
        self.assert_rejects("B02_Other", "check_bug_cases.py", str(self.root))

    def test_rejects_a_row_without_a_test_of_its_name(self):
        self.rows[0] = "| A-01 | symptom | `A01_Held`, `A02_Held` |"
        self.rows[1] = "| A-02 | symptom | `A01_Held` |"
        self.page(self.rows)
        self.assert_rejects("A02 names no test", "check_bug_cases.py", str(self.root))

    def test_rejects_a_row_without_test(self):
        self.rows[2] = "| A-03 | symptom | none: later |"
        self.page(self.rows)
        self.assert_rejects("A03", "check_bug_cases.py", str(self.root))


class CitationsTest(CheckTest):
    def setUp(self):
        super().setUp()
        self.write("docs/model.md", "# Model\n\n## 1. Terms\n\n## 2. Rows\n\n### 2.1 Codes\n\n"
                   "### 2.2 Scales\n\n## 3. Costs\n\nsee ## 9 and §8\n")

    def cite(self, comment):
        self.write("src/base/a.cc", "#include <string>\n" + comment + "\n")

    def assert_citation_rejected(self, message, comment):
        self.cite(comment)
        self.assert_rejects(message, "check_citations.py", str(self.root))

    def test_accepts_pages_sections_lists_and_ranges(self):
        for comment in ("// As docs/model.md says.", "// (model.md §2.1)", "// model.md §1, §2.2 and §3.",
                        "// model.md §1-§3; model.md §2.1-2.2", "// Rows (model.md\n// §2.1).",
                        "#  Rows: model.md §1,\n#  §3", "// Section 9 of no page: §9."):
            self.cite(comment)
            self.assert_clean("check_citations.py", str(self.root))

    def test_accepts_pages_outside_docs_when_they_are_there(self):
        self.write("models/tiny/README.md", "# Tiny\n")
        self.cite("// models/tiny/README.md")
        self.assert_clean("check_citations.py", str(self.root))

    def test_rejects_a_missing_page(self):
        self.assert_citation_rejected("src/base/a.cc:2: docs/engine.md is not there",
                                      "// (engine.md §3)")
        self.assert_citation_rejected("models/README.md is not there", "// models/README.md")

    def test_rejects_a_missing_section(self):
        self.assert_citation_rejected("src/base/a.cc:2: docs/model.md has no section 2.3",
                                      "// model.md §2.3")
        self.assert_citation_rejected("has no section 9", "// model.md §1, §9")
        self.assert_citation_rejected("has no section 9", "// model.md §3;\n// model.md\n// §9")

    def test_rejects_a_gap_inside_a_range(self):
        self.assert_citation_rejected("has no section 4", "// model.md §3-§5")
        self.assert_citation_rejected("has no section 2.3", "// model.md §2.1-2.3")

    def test_names_the_line_in_a_comment_of_several(self):
        self.assert_citation_rejected("src/base/a.cc:4:", "// One,\n// two,\n// model.md §7")

    def test_looks_into_tests_too(self):
        self.write("src/base/a.cc", "int a;\n")
        self.write("tests/unit/base/a_test.cc", "// model.md §7\n")
        self.assert_rejects("tests/unit/base/a_test.cc:1:", "check_citations.py", str(self.root))


class FormatTest(CheckTest):
    def test_tells_formatted_from_unformatted_text(self):
        (self.root / ".clang-format").write_bytes((SCRIPTS.parent / ".clang-format").read_bytes())
        good = self.write("good.cc", "int Twice(int x) { return 2 * x; }\n")
        bad = self.write("bad.cc", "int Twice( int x ){return 2*x;}\n")
        self.assert_clean("format_check", good)
        self.assert_rejects("bad.cc:1:", "format_check", good, bad)


class TidyTest(CheckTest):
    def test_reports_a_use_after_move(self):
        (self.root / ".clang-tidy").write_bytes((SCRIPTS.parent / ".clang-tidy").read_bytes())
        source = self.write("moved.cc", "#include <string>\n#include <utility>\n"
                            "std::string Join(std::string a) {\n"
                            "  std::string b = std::move(a);\n  return a + b;\n}\n")
        command = f'"clang++ -std=c++20 -c {source}"'
        self.write("compile_commands.json", f'[{{"directory": "{self.root}", "file": "{source}", '
                   f'"command": {command}}}]')
        self.assert_rejects("bugprone-use-after-move", "tidy_check", str(self.root), source)


if __name__ == "__main__":
    unittest.main()
